"""The parts of a problem: devices, links, and the blocks of a micro-batch's work with what they wait for.

A block's costs may depend on the micro-batch's class, and options may leave it out: neither is so unless it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from weft.solver.values import Number, ProblemError, is_summable, require_amount, require_finite, require_name

#: Amounts of a block on its devices, in their order; one number stands for all devices, an empty tuple for nothing.
Amounts: TypeAlias = tuple[Number, ...]
#: Options by choice.
Options: TypeAlias = Mapping[str, str]


class BlockKind(StrEnum):
    """The work of a block. The search treats all kinds alike; baselines, pictures and the executor do not."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"
    RECOMPUTE = "recompute"
    COLLECTIVE = "collective"
    OTHER = "other"

    @property
    def letter(self) -> str:
        """The field's one-letter name: F, B (full backward), I (input-gradient), W (weight-gradient), R, C, O."""
        return {"input_grad": "I", "weight_grad": "W"}.get(self.value, self.value[0].upper())


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or anything else that runs one block at a time.

    ``memory`` is the capacity available to blocks at run time (weights and other constants are already subtracted), in
    the problem's memory unit; ``None`` is unlimited. ``static`` is the amount subtracted, if known: schedules do not
    need it, but people want to see it.

    With ``lane_of``, the name of another device, it is an engine of that device (its network, its copies): a lane. It
    runs one block at a time in parallel with its owner, has no rank and no memory of its own, and the amounts that its
    blocks take and give count on its owner.
    """

    name: str
    memory: Number | None = None
    static: Number = 0
    lane_of: str | None = None

    def __post_init__(self) -> None:
        require_name(self.name, "device")
        if self.memory is not None:
            require_amount(self.memory, f"device {self.name!r}: memory")
        require_amount(self.static, f"device {self.name!r}: static")
        if self.lane_of is None:
            return
        require_name(self.lane_of, f"device {self.name!r}: lane_of")
        for label, value in (("memory", self.memory), ("static", self.static or None)):
            if value is not None:
                raise ProblemError(f"device {self.name!r}: {label} is {value}, but a lane has none of its own: leave "
                                   f"it out, what its blocks hold counts on device {self.lane_of!r}")


def owners(devices: Sequence[Device]) -> tuple[int, ...]:
    """Per device, the one whose memory its blocks count on: its owner for a lane, else itself."""
    places = {device.name: d for d, device in enumerate(devices)}
    return tuple(d if device.lane_of is None else places[device.lane_of] for d, device in enumerate(devices))


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link between two devices (by index) that carries one transfer at a time.

    It may begin and end at one device: such as copies to the host, which is not a device (:mod:`weft.solver.offload`).
    """

    name: str
    source: int
    target: int

    def __post_init__(self) -> None:
        require_name(self.name, "link")


def per_class(**values: Any) -> dict[str, Any]:
    """Fields of a :class:`Block` or :class:`Dependency` from ``values`` of which each is one, or a mapping with one for
    each class of micro-batches: the first one is the field's own, and all are in ``by_class``."""
    varying = {label: value for label, value in values.items() if isinstance(value, Mapping)}
    return {**values, **{label: next(iter(value.values())) for label, value in varying.items()}, "by_class": varying}


def changed(of: Block | Dependency, **changes: Callable[[Any], Any]) -> dict[str, Any]:
    """Those fields of ``of``, each changed, for each class where they differ."""
    made = per_class(**{label: {name: change(own) for name, own in of.by_class[label].items()} if label in of.by_class
                        else change(getattr(of, label)) for label, change in changes.items()})
    return {**made, "by_class": {**of.by_class, **made["by_class"]}}


@dataclass(frozen=True, slots=True)
class Dependency:
    """The block with this entry waits for ``block``.

    ``lag`` is the transfer time after that block ends. With ``link``, the transfer occupies that link for
    ``lag``; a link carries its transfers one at a time, in the order in which their producers run on the
    link's source device. ``distance`` = 1 waits for the previous micro-batch's instance (2 for the one before, ...);
    the first micro-batches have nothing to wait for.

    It is there under the options ``when`` only. ``by_class`` may have ``lag`` for each class of micro-batches, that of
    the one that is waited for: :func:`per_class` makes both.
    """

    block: str
    lag: Number = 0
    link: str | None = None
    distance: int = 0
    when: Options = field(default_factory=dict, hash=False)
    by_class: Mapping[str, Mapping[str, Number]] = field(default_factory=dict, hash=False)

    def of_class(self, name: str | None) -> Dependency:
        """The plain dependency where the micro-batch that is waited for is of class ``name``."""
        if not self.when and not self.by_class:
            return self
        return Dependency(self.block, _of_class(self, "lag", name), self.link, self.distance)


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of one micro-batch's work that runs without interruption and occupies all its devices meanwhile.

    ``devices`` are indices into :attr:`Problem.devices`. ``duration`` > 0, in the problem's time unit.
    ``memory`` is the change on each of its devices, in the order of ``devices``: a positive amount is taken when the
    block starts, a negative one is given back when it ends. ``workspace`` (same shape, 0 or more) is taken at the start
    and given back at the end. A single number is the amount on every device.

    It exists under the options ``when`` only, and may belong to a ``job``. Where micro-batches differ, ``by_class`` has
    ``duration``, ``memory`` or ``workspace`` for each class: :func:`per_class` makes both.
    """

    name: str
    kind: BlockKind
    devices: tuple[int, ...]
    duration: Number
    memory: Amounts = ()
    workspace: Amounts = ()
    after: tuple[Dependency, ...] = ()
    when: Options = field(default_factory=dict, hash=False)
    job: str | None = None
    by_class: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require_name(self.name, "block")
        count = len(self.devices)
        if not self.devices:
            raise ProblemError(f"block {self.name!r}: devices is empty, a block runs on at least one device")
        if count > 1 and len(set(self.devices)) != count:
            raise ProblemError(f"block {self.name!r}: devices {list(self.devices)} names a device twice")
        if not is_summable(self.duration):
            require_finite(self.duration, f"block {self.name!r}: duration")
        if self.duration <= 0:
            raise ProblemError(f"block {self.name!r}: duration is {self.duration}, it must be greater than 0")
        for label in ("memory", "workspace"):
            amounts = getattr(self, label) or (0,) * count
            if len(amounts) == 1 and count > 1:
                amounts = amounts * count
            if len(amounts) != count:
                raise ProblemError(f"block {self.name!r}: {label} has {len(amounts)} entries for {count} devices")
            for amount in amounts:
                if not is_summable(amount) or (amount < 0 and label == "workspace"):
                    require = require_amount if label == "workspace" else require_finite
                    require(amount, f"block {self.name!r}: {label}")
            object.__setattr__(self, label, tuple(amounts))
        for dependency in self.after:
            self._check_wait(dependency)
        if not self.is_plain:
            self._check_classes()

    def _check_wait(self, dependency: Dependency) -> None:
        here = f"block {self.name!r}: after"
        require_name(dependency.block, here)
        if dependency.link is not None:
            require_name(dependency.link, f"{here} {dependency.block!r}: link")
        if not is_summable(dependency.lag) or dependency.lag < 0:
            require_amount(dependency.lag, f"{here} {dependency.block!r}: lag")
        if dependency.distance < 0:
            raise ProblemError(f"{here} {dependency.block!r}: distance is {dependency.distance}, it must be 0 or more")

    def _check_classes(self) -> None:
        """Names, and what only some of the classes have."""
        names = self.classes
        for label, values in self.by_class.items():
            missing = [name for name in names if name not in values]
            if missing:
                raise ProblemError(f"block {self.name!r}: {label} says nothing of class {missing[0]!r}, of which "
                                   "other entries do: give a number for each class, or one for all")
        here = f"block {self.name!r:.70}"
        for what, named in (("job", () if self.job is None else (self.job,)), ("class", names),
                            ("when", (text for when in (self.when, *(wait.when for wait in self.after))
                                      for option in when.items() for text in option))):
            for text in named:
                require_name(text, f"{here}: {what}")
        for name in names:
            self.of_class(name)

    @property
    def is_plain(self) -> bool:
        """Whether it is the same for all micro-batches under all options, and of no job."""
        for wait in self.after:
            if wait.when or wait.by_class:
                return False
        return not self.when and not self.by_class and self.job is None

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes whose costs or waits it names, in the order in which they are named."""
        return tuple(dict.fromkeys(name for by_class in (self.by_class, *(wait.by_class for wait in self.after))
                                   for values in by_class.values() for name in values))

    def of_class(self, name: str | None) -> Block:
        """The plain block for micro-batches of class ``name``, whatever the options; what it waits for is of the same
        class."""
        if self.is_plain:
            return self
        return Block(self.name, self.kind, self.devices, _of_class(self, "duration", name),
                     _of_class(self, "memory", name), _of_class(self, "workspace", name),
                     tuple(wait.of_class(name) for wait in self.after))

    def under(self, options: Options) -> Block:
        """The block where ``options`` are taken, under which it must exist; without waits under other options."""
        if not self.when and not any(wait.when for wait in self.after):
            return self
        return replace(self, when=_left(self.when, options),
                       after=tuple(replace(wait, when=_left(wait.when, options)) if wait.when else wait
                                   for wait in self.after if holds(wait.when, options)))

    def memory_on(self, device: int) -> Number:
        """Memory change on ``device`` (0 if the block does not run there)."""
        return self.memory[self.devices.index(device)] if device in self.devices else 0

    def workspace_on(self, device: int) -> Number:
        """Workspace on ``device`` (0 if the block does not run there)."""
        return self.workspace[self.devices.index(device)] if device in self.devices else 0


def _of_class(of: Block | Dependency, label: str, name: str | None) -> Any:
    """The field ``label`` for class ``name``; where there is no class, for the only one."""
    if label not in of.by_class:
        return getattr(of, label)
    values = of.by_class[label]
    if name is None:
        if len(values) == 1:
            return next(iter(values.values()))
        raise ProblemError("micro-batches are of several classes (" + ", ".join(map(repr, values))
                           + "), and the run does not say which are which")
    if name not in values:
        raise ProblemError(f"there is no class {name!r}, there are " + ", ".join(map(repr, values)))
    return values[name]


def all_classes(blocks: Iterable[Block]) -> tuple[str, ...]:
    """The classes of all ``blocks``, in the order in which they are named."""
    return tuple(dict.fromkeys(name for block in blocks for name in block.classes))


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
