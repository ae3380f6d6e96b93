"""A block of a wide problem: its costs may depend on the micro-batch's class, and options may leave it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from weft.solver.problem import Block, BlockKind, Dependency, Number, ProblemError
from weft.solver.values import require_name

Value = TypeVar("Value")
#: Amounts of a block on its devices, in their order; one number stands for all devices, an empty tuple for nothing.
Amounts: TypeAlias = tuple[Number, ...]
#: Options by choice.
Options: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class WideDependency:
    """A :class:`~weft.solver.problem.Dependency` that may be there under the options ``when`` only.

    ``lag`` is one number, or one for each class: that of the micro-batch that is waited for.
    """

    block: str
    lag: Number | Mapping[str, Number] = 0
    link: str | None = None
    distance: int = 0
    when: Options = field(default_factory=dict)

    def of_class(self, name: str | None) -> Dependency:
        """The plain dependency where the micro-batch that is waited for is of class ``name``."""
        return Dependency(self.block, _of(self.lag, name), self.link, self.distance)


@dataclass(frozen=True)
class WideBlock:
    """A :class:`~weft.solver.problem.Block` that may be there under the options ``when`` only, and belong to a ``job``.

    ``duration``, ``memory`` and ``workspace`` are one value each, or one for each class. Raises
    :class:`~weft.solver.problem.ProblemError` for whatever a plain block is refused for, and for classes that only
    some of them name.
    """

    name: str
    kind: BlockKind
    devices: tuple[int, ...]
    duration: Number | Mapping[str, Number]
    memory: Amounts | Mapping[str, Amounts] = ()
    workspace: Amounts | Mapping[str, Amounts] = ()
    after: tuple[WideDependency, ...] = ()
    when: Options = field(default_factory=dict)
    job: str | None = None

    def __post_init__(self) -> None:
        names = self.classes
        self._check_names()
        for label in ("duration", "memory", "workspace"):
            value = getattr(self, label)
            if isinstance(value, Mapping):
                missing = [name for name in names if name not in value]
                if missing:
                    raise ProblemError(f"block {self.name!r}: {label} says nothing of class {missing[0]!r}, of which "
                                       "other entries do: give a number for each class, or one for all")
        for name in names or (None,):
            self.of_class(name)

    def _check_names(self) -> None:
        here = f"block {self.name!r:.70}"
        for what, named in (("job", () if self.job is None else (self.job,)), ("class", self.classes),
                            ("when", (text for when in (self.when, *(wait.when for wait in self.after))
                                      for option in when.items() for text in option))):
            for text in named:
                require_name(text, f"{here}: {what}")

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes whose costs or waits it names, in the order in which they are named."""
        values = (self.duration, self.memory, self.workspace, *(wait.lag for wait in self.after))
        return tuple(dict.fromkeys(name for value in values if isinstance(value, Mapping) for name in value))

    def of_class(self, name: str | None) -> Block:
        """The plain block for micro-batches of class ``name``, whatever the options; what it waits for is of the same
        class."""
        return Block(self.name, self.kind, self.devices, _of(self.duration, name), _of(self.memory, name),
                     _of(self.workspace, name), tuple(wait.of_class(name) for wait in self.after))

    def under(self, options: Options) -> WideBlock:
        """The block where ``options`` are taken, under which it must exist; without waits under other options."""
        return replace(self, when=_left(self.when, options),
                       after=tuple(replace(wait, when=_left(wait.when, options))
                                   for wait in self.after if holds(wait.when, options)))


def options_text(options: Options) -> str:
    """``choice = option`` of each."""
    return ", ".join(f"{choice} = {option}" for choice, option in options.items())


def holds(when: Options, taken: Options) -> bool:
    """Whether something that exists under ``when`` may exist where ``taken`` are taken: no choice excludes it."""
    return all(taken.get(choice, option) == option for choice, option in when.items())


def excludes(one: Options, other: Options) -> bool:
    """Whether no assignment satisfies both."""
    return not holds(one, other)


def _left(when: Options, taken: Options) -> Options:
    return {choice: option for choice, option in when.items() if choice not in taken}


def _of(value: Value | Mapping[str, Value], name: str | None) -> Value:
    """``value`` for class ``name``; where there is no class, the only one."""
    if not isinstance(value, Mapping):
        return value
    if name is None:
        if len(value) == 1:
            return next(iter(value.values()))
        raise ProblemError("micro-batches are of several classes (" + ", ".join(map(repr, value))
                           + "), and the run does not say which are which")
    if name not in value:
        raise ProblemError(f"there is no class {name!r}, there are " + ", ".join(map(repr, value)))
    return value[name]


def all_classes(blocks: Iterable[WideBlock]) -> tuple[str, ...]:
    """The classes of all ``blocks``, in the order in which they are named."""
    return tuple(dict.fromkeys(name for block in blocks for name in block.classes))
