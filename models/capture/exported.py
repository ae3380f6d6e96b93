"""An exported program as stated in its file: its sources, its calls, and the metadata of each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from weft.models.files.limits import MAX_OPERATORS, bad_name


class ExportFault(ValueError):
    """A file that is not an exported program, or has another version; the message names the file and the remedy."""


class Ref(NamedTuple):
    """An argument that is a tensor of the program, by name."""

    name: str


class Named(NamedTuple):
    """An argument that is a constant of torch: ``torch.<name>``, or a device."""

    kind: Literal["constant", "device"]
    name: str


@dataclass(frozen=True, slots=True)
class Meta:
    """A tensor's metadata: sizes and strides in elements, type, device, and whether it requires a gradient."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Source:
    """An initial tensor of the program. ``target``: its name in the module (for an input, its own name)."""

    name: str
    role: Literal["parameter", "buffer", "constant", "input"]
    target: str


@dataclass(frozen=True, slots=True)
class Step:
    """One call. ``outputs`` name its results in order (``None``: not a tensor). ``module``: path of its ``nn.Module``,
    ``module_type`` that module's class. ``grad``: false inside ``torch.no_grad``."""

    name: str
    target: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[str | None, ...]
    module: str
    module_type: str
    grad: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors among its arguments."""
        return tuple(refs((self.arguments, self.keywords)))

    @property
    def made(self) -> list[str]:
        """Names of its results that are tensors."""
        return [name for name in self.outputs if name is not None]

    @property
    def given(self) -> str:
        """Its first result, a tensor, by name."""
        given = self.outputs[0]
        assert given is not None
        return given

    @property
    def kind(self) -> str:
        """Its operator's name without library and overload: ``torch.ops.aten.slice.Tensor`` is a ``slice``."""
        return self.target.split(".")[3]

    def at(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.arguments[place] if place < len(self.arguments) else self.keywords.get(name, default)


def refs(value: Any) -> Iterator[str]:
    """Names of the tensors in arguments."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from refs(item)


def require_order(sources: Iterable[Source], steps: Sequence[Step], results: Iterable[str],
                  metas: Mapping[str, Meta]) -> None:
    """Refuse (:class:`ExportFault`) a program in which a call reads a tensor not made before, a name is defined twice,
    or names are unprintable."""
    if len(steps) > MAX_OPERATORS:
        raise ExportFault(f"has {len(steps)} calls, at most {MAX_OPERATORS} are supported")
    known: set[str] = set()
    for source in sources:
        _require_name(source.name, "an input")
        _require_name(source.target, f"the target of {source.name!r}")
        if source.name in known or source.name not in metas:
            raise ExportFault(f"the input {source.name!r} is listed twice, or nothing says what tensor it is")
        known.add(source.name)
    for step in steps:
        for what, text in (("a call", step.name), ("a call's target", step.target), ("a call's module", step.module),
                           ("a call's module type", step.module_type)):
            _require_name(text, what)
        for name in step.reads:
            if name not in known:
                raise ExportFault(f"the call {step.name!r} reads {name!r}, which no call before it makes")
        for made in step.made:
            _require_name(made, f"a result of {step.name!r}")
            if made in known or made not in metas:
                raise ExportFault(f"{made!r}, a result of {step.name!r}, is made twice, or nothing says what tensor it "
                                  "is")
            known.add(made)
    for name in results:
        if name not in known:
            raise ExportFault(f"the result {name!r} is made by no call")


def _require_name(text: object, what: str) -> None:
    wrong = bad_name(text) if isinstance(text, str) else f"is {text!r:.60}, it must be text"
    if wrong is not None:
        raise ExportFault(f"the name of {what} {wrong}")


@dataclass(frozen=True)
class Exported:
    """A program: its sources, its calls in order, the names of its outputs, and all tensors' metadata."""

    name: str
    torch_version: str
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    metas: Mapping[str, Meta]
    notes: tuple[str, ...] = ()
