"""A model as operators that say how they split: what plans transform.

A :class:`PlanProgram` is what an :class:`~weft.models.graph.operators.OperatorGraph` is not: its operators know the
order of what they read, parameters among it, and which kernel computes them, so that it can be run. Gradients and
optimizers are operators like any others (:mod:`weft.models.transform.backward`), and a gradient with several terms is
the sum of tensors, without an operator of its own.

How an operator splits, in one line: ``m k+, k+ n -> m n``.

Left of the arrow stand its inputs, right its outputs, each with a name per dimension. A name alone is *spatial*: a part
of the operator reads and gives its part of it. ``k+`` is a *reduction*: it is in no output, and parts of it give terms
of a sum. ``h^`` is *frozen*: it is not cut. ``(h d)`` is one dimension of h x d elements, h changing slowest; ``1`` a
dimension of one element. What an input does not name, all parts read whole. (The notation is that of Lin et al.,
"SuperScaler" / "nnScaler", OSDI 2024.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, TypeAlias

from weft.models.graph.dataflow import Dataflow

#: Where a tensor comes from: from outside, as a weight, as an optimizer's state, or from an operator.
Source: TypeAlias = Literal["input", "parameter", "state", "operator"]


@dataclass(frozen=True, slots=True)
class ProgramTensor:
    """A tensor: ``shape`` in elements of ``itemsize`` bytes. ``gradient``: whether one flows back through it.
    ``dtype``: the type of its elements, where it is not that of the parameters."""

    name: str
    shape: tuple[int, ...]
    source: Source = "operator"
    itemsize: int = 8
    gradient: bool = True
    dtype: str = ""


@dataclass(frozen=True)
class PlanOperation:
    """One operator. ``kind`` names what computes it (:mod:`weft.runtime.by_hand.kernels`), ``attributes`` are its
    other arguments; ``sizes`` by name of the annotation. ``follows``: the operator whose splits and devices it takes,
    unless it has its own: a gradient follows its forward, an update the operator that reads the parameter. ``phase``:
    the part of a step that it belongs to."""

    name: str
    kind: str
    annotation: Annotation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    follows: str | None = None
    phase: Literal["forward", "recomputed", "backward", "update"] = "forward"

    def ahead_of(self, name: str) -> list[str]:
        """The names of several indices that stand before ``name`` in a dimension: parts of it are then not in one
        piece."""
        return [other for tensor in (*self.annotation.inputs, *self.annotation.outputs) for axis in tensor
                if name in axis for other in axis[:axis.index(name)] if self.sizes[other] > 1]

    @property
    def reads(self) -> Iterator[tuple[str, Dimensions]]:
        """Its inputs, and the names of their dimensions."""
        return zip(self.inputs, self.annotation.inputs, strict=True)

    @property
    def gives(self) -> Iterator[tuple[str, Dimensions]]:
        """Its outputs, and the names of their dimensions."""
        return zip(self.outputs, self.annotation.outputs, strict=True)


@dataclass(frozen=True)
class PlanProgram(Dataflow[PlanOperation]):
    """``operations`` in an order in which they can run. ``sums``: tensors that are the sum of others, by name.
    ``outputs``: what leaves it. ``carried``: by the tensor that is made, the parameter or state that it is in the next
    step. ``notes``: sentences on what is not known of the operators.

    Raises :class:`~weft.models.transform.program.PlanError` for names that are used twice or come from nowhere.
    """

    name: str
    operations: tuple[PlanOperation, ...]
    tensors: Mapping[str, ProgramTensor]
    outputs: tuple[str, ...]
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = self.require_made(PlanError)
        for name in self.outputs:
            if not set(self.sums.get(name, (name,))) <= known:
                raise PlanError(f"the output {name!r} is made by no operator")

    @property
    def steps(self) -> tuple[PlanOperation, ...]:
        """The operators."""
        return self.operations

    def require_given(self, values: Mapping[str, Any], names: Collection[str] | None = None) -> None:
        """Raise :class:`~weft.models.transform.program.PlanError` unless all that comes from outside, or that of these
        ``names``, is among ``values`` in its shape."""
        for name, tensor in self.given.items():
            shape = getattr(values.get(name), "shape", None)
            if (names is None or name in names) and (shape is None or tuple(shape) != tensor.shape):
                what = "is missing" if name not in values else f"is of shape {tuple(shape)}" if shape is not None else (
                    f"is given as {type(values[name]).__name__}, it must be a tensor")
                raise PlanError(f"the {tensor.source} {name!r} of shape {tensor.shape} {what}")

    def terms(self, name: str) -> tuple[str, ...]:
        """The tensors that ``name`` is the sum of: itself, for most."""
        return self.sums.get(name, (name,))

    def named(self, pattern: str, *, followers: bool = False) -> tuple[str, ...]:
        """The operators that a name, or several patterns as of a shell between spaces, stand for.

        Without ``followers`` those that follow another are found by their exact name alone. Raises
        :class:`~weft.models.transform.program.PlanError` where there is none.
        """
        if pattern in self.by_name:
            return (pattern,)
        found: dict[str, None] = {}
        for one in pattern.split():
            alike = [operation.name for operation in self.operations if fnmatchcase(operation.name, one)
                     and (followers or operation.follows is None or operation.phase == "update")]
            if not alike:
                raise PlanError(f"there is no operator {one!r}; there are {', '.join(list(self.by_name)[:12])} ...")
            found.update(dict.fromkeys(alike))
        if not found:
            raise PlanError(f"{pattern!r} names no operator; write a name, or a pattern such as '*'")
        return tuple(found)


class ProgramBuilder:
    """Writes a program operator by operator; each call gives the names of the tensors that it makes."""

    def __init__(self, name: str, itemsize: int = 8) -> None:
        self.name, self.itemsize = name, itemsize
        self.operations: list[PlanOperation] = []
        self.tensors: dict[str, ProgramTensor] = {}
        self.notes: list[str] = []

    def input(self, name: str, shape: Sequence[int], *, gradient: bool = False) -> str:
        """A tensor from outside; ``gradient``: whether its gradient is wanted."""
        return self._tensor(name, shape, "input", gradient)

    def parameter(self, name: str, shape: Sequence[int]) -> str:
        """A weight."""
        return self._tensor(name, shape, "parameter", True)

    def _tensor(self, name: str, shape: Sequence[int], source: Source, gradient: bool) -> str:
        if name in self.tensors:
            raise PlanError(f"the tensor name {name!r} is used twice")
        self.tensors[name] = ProgramTensor(name, tuple(shape), source, self.itemsize, gradient)
        return name

    def add(self, name: str, kind: str, how: str | Annotation, inputs: Sequence[str], *,
            sizes: Mapping[str, int] | None = None, outputs: Sequence[str] | None = None, **attributes: Any) -> str:
        """An operator; its only, or first, output by name: ``name`` itself unless ``outputs`` names them."""
        return self.several(name, kind, how, inputs, sizes=sizes, outputs=outputs, **attributes)[0]

    def several(self, name: str, kind: str, how: str | Annotation, inputs: Sequence[str], *,
                sizes: Mapping[str, int] | None = None, outputs: Sequence[str] | None = None,
                **attributes: Any) -> tuple[str, ...]:
        """The same, all its outputs by name."""
        found = annotation(how) if isinstance(how, str) else how
        for tensor in inputs:
            if tensor not in self.tensors:
                raise PlanError(f"operator {name!r} reads {tensor!r}, which nothing before it makes")
        try:
            known = found.sizes([self.tensors[tensor].shape for tensor in inputs], sizes)
        except PlanError as error:
            raise PlanError(f"operator {name!r}: {error}") from None
        names = tuple(outputs or ([name] if len(found.outputs) == 1 else
                                  [f"{name}.{i}" for i in range(len(found.outputs))]))
        needs = any(self.tensors[tensor].gradient for tensor in inputs)
        for made, dimensions in zip(names, found.outputs, strict=True):
            self._tensor(made, Annotation.shape(dimensions, known), "operator", needs)
        self.operations.append(PlanOperation(name, kind, found, tuple(inputs), names, known, attributes))
        return names

    def detached(self, name: str, how: str, tensor: str) -> str:
        """The same numbers, through which no gradient flows back: what made ``tensor`` runs forward alone, as the
        passes of a model that recycles its own output do."""
        made = self.add(name, "identity", how, [tensor])
        self.tensors[made] = replace(self.tensors[made], gradient=False)
        return made

    def build(self, *outputs: str) -> PlanProgram:
        """The program that gives ``outputs``."""
        return PlanProgram(self.name, tuple(self.operations), dict(self.tensors), outputs, notes=tuple(self.notes))


#: The names whose sizes multiply to a dimension's; none for a dimension of one element.
Axis: TypeAlias = tuple[str, ...]
Dimensions: TypeAlias = tuple[Axis, ...]
Role: TypeAlias = Literal["spatial", "reduction", "frozen"]

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*[+^]?)|(?P<group>\([^()]*\))|(?P<one>1))(?=[\s,]|$)")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<mark>[+^]?)")


class PlanError(ValueError):
    """A plan that cannot be: an annotation that means nothing, a split that does not divide, a cycle ..."""


@dataclass(frozen=True)
class Annotation:
    """``inputs`` and ``outputs`` by tensor and dimension; ``marks``: the names that are ``+`` or ``^``."""

    inputs: tuple[Dimensions, ...]
    outputs: tuple[Dimensions, ...]
    marks: Mapping[str, str]

    def __str__(self) -> str:
        return " -> ".join(", ".join(" ".join(map(self._axis, tensor)) for tensor in side)
                           for side in (self.inputs, self.outputs))

    def _axis(self, axis: Axis) -> str:
        names = [f"{name}{self.marks.get(name, '')}" for name in axis]
        return "1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they first stand."""
        return tuple(dict.fromkeys(name for tensor in (*self.inputs, *self.outputs) for axis in tensor
                                   for name in axis))

    def role(self, name: str) -> Role:
        """What a name is."""
        return {"+": "reduction", "^": "frozen"}.get(self.marks.get(name, ""), "spatial")  # type: ignore[return-value]

    def sizes(self, shapes: Sequence[Sequence[int]], known: Mapping[str, int] | None = None) -> dict[str, int]:
        """The size of each name from the shapes of the inputs, beside those ``known``.

        Raises :class:`PlanError` where shapes and names do not fit.
        """
        found = dict(known or {})
        if len(shapes) != len(self.inputs):
            raise PlanError(f"the annotation {self} has {len(self.inputs)} inputs, {len(shapes)} are given")
        for shape, tensor in zip(shapes, self.inputs, strict=True):
            if len(shape) != len(tensor):
                raise PlanError(f"the annotation {self} names {len(tensor)} dimensions of an input of shape "
                                f"{tuple(shape)}")
        pairs = [(axis, size) for shape, tensor in zip(shapes, self.inputs, strict=True)
                 for size, axis in zip(shape, tensor, strict=True)]
        for _ in range(len(pairs) + 1):  # a name may stand alone only behind the group that needs it
            for axis, size in pairs:
                missing = [name for name in axis if name not in found]
                rest = math.prod(found[name] for name in axis if name in found)
                if len(missing) == 1 and rest and size % rest == 0:
                    found[missing[0]] = size // rest
                elif not missing and rest != size:
                    raise PlanError(f"the annotation {self}: {self._axis(axis)} is {rest} in one place and {size} in "
                                    "another")
        for name in self.names:
            if name not in found:
                raise PlanError(f"the annotation {self}: the size of {name!r} follows from no shape; give it")
        return found

    @staticmethod
    def shape(tensor: Dimensions, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a tensor under ``sizes``."""
        return tuple(math.prod(sizes[name] for name in axis) for axis in tensor)


def annotation(text: str) -> Annotation:
    """The annotation that ``text`` writes. Raises :class:`PlanError` with the fault."""
    sides = text.split("->")
    if len(sides) != 2:
        raise PlanError(f"the annotation {text!r} needs one arrow: inputs -> outputs")
    marks: dict[str, str] = {}
    plain: set[str] = set()
    inputs, outputs = (tuple(_tensor(part, text, marks, plain) for part in side.split(",")) for side in sides)
    found = Annotation(inputs, outputs, marks)
    _require_roles(found, text)
    return found


def mirrored(inputs: Sequence[Dimensions], outputs: Sequence[Dimensions], frozen: Iterable[str]) -> Annotation:
    """The annotation of an operator that sums over what no output names, as gradients do."""
    given = {name for tensor in outputs for axis in tensor for name in axis}
    marks = {name: "+" for tensor in inputs for axis in tensor for name in axis if name not in given}
    marks |= dict.fromkeys((name for name in frozen if name in marks or name in given), "^")
    every = [{name for axis in tensor for name in axis} for tensor in outputs]
    marks |= {name: "^" for name in given if not all(name in names for names in every)}
    return Annotation(tuple(inputs), tuple(outputs), marks)


def _tensor(part: str, text: str, marks: dict[str, str], plain: set[str]) -> Dimensions:
    axes: list[Axis] = []
    at = 0
    part = part.strip()
    while at < len(part):
        token = _TOKEN.match(part, at)
        if token is None:
            raise PlanError(f"the annotation {text!r}: {part[at:].strip()!r} is no dimension; write a name, one with + "
                            "or ^, a group in parentheses, or 1")
        at = token.end()
        axis = []
        for found in _NAME.finditer(token["name"] or token["group"] or ""):
            name, mark = found["name"], found["mark"]
            if marks.get(name, mark) != mark and mark:
                raise PlanError(f"the annotation {text!r}: {name!r} is marked + and ^")
            if mark:
                marks[name] = mark
            else:
                plain.add(name)
            axis.append(name)
        axes.append(tuple(axis))
    names = [name for axis in axes for name in axis]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"the annotation {text!r}: {name!r} stands twice in one tensor")
    return tuple(axes)


def _require_roles(found: Annotation, text: str) -> None:
    given = [{name for axis in tensor for name in axis} for tensor in found.outputs]
    for name in found.names:
        missing = [names for names in given if name not in names]
        if found.role(name) == "spatial" and missing:
            raise PlanError(f"the annotation {text!r}: {name!r} is spatial, but an output does not have it; write "
                            f"{name}+ if parts of it are terms of a sum, {name}^ if it is not to be cut")
        if found.role(name) == "reduction" and len(missing) < len(given):
            raise PlanError(f"the annotation {text!r}: {name!r} is a reduction, but an output has it; write {name} or "
                            f"{name}^")
