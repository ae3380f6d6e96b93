"""A model as operators that say how they split: what plans transform.

A :class:`Program` is what an :class:`~weft.models.graph.operators.OperatorGraph` is not: its operators know the order
of what they read, parameters among it, and which kernel computes them, so that it can be run. Gradients and optimizers
are operators like any others (:mod:`weft.models.transform.backward`), and a gradient with several terms is the sum of
tensors, without an operator of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, TypeAlias

from weft.models.transform.annotation import Annotation, PlanError, annotation

__all__ = ["Operation", "Program", "ProgramBuilder", "ProgramTensor", "Source"]

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
class Operation:
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


@dataclass(frozen=True)
class Program:
    """``operations`` in an order in which they can run. ``sums``: tensors that are the sum of others, by name.
    ``outputs``: what leaves it. ``carried``: by the tensor that is made, the parameter or state that it is in the next
    step. ``notes``: sentences on what is not known of the operators.

    Raises :class:`~weft.models.transform.annotation.PlanError` for names that are used twice or come from nowhere.
    """

    name: str
    operations: tuple[Operation, ...]
    tensors: Mapping[str, ProgramTensor]
    outputs: tuple[str, ...]
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = {name for name, tensor in self.tensors.items() if tensor.source != "operator"}
        seen: set[str] = set()
        for operation in self.operations:
            if operation.name in seen:
                raise PlanError(f"the operator name {operation.name!r} is used twice")
            seen.add(operation.name)
            for name in operation.inputs:
                for term in self.sums.get(name, (name,)):
                    if term not in known:
                        raise PlanError(f"operator {operation.name!r} reads {term!r}, which nothing before it makes")
            for name in operation.outputs:
                if name in known or name not in self.tensors:
                    raise PlanError(f"operator {operation.name!r} makes {name!r}, which is made twice or is no tensor")
                known.add(name)
        for name in self.outputs:
            if not set(self.sums.get(name, (name,))) <= known:
                raise PlanError(f"the output {name!r} is made by no operator")

    @cached_property
    def by_name(self) -> Mapping[str, Operation]:
        """Operators by name."""
        return {operation.name: operation for operation in self.operations}

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """The operator that makes each tensor."""
        return {name: operation.name for operation in self.operations for name in operation.outputs}

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """The operators that read each tensor, sums by their own name."""
        found: dict[str, list[str]] = {}
        for operation in self.operations:
            for name in dict.fromkeys(operation.inputs):
                found.setdefault(name, []).append(operation.name)
        return {name: tuple(readers) for name, readers in found.items()}

    def terms(self, name: str) -> tuple[str, ...]:
        """The tensors that ``name`` is the sum of: itself, for most."""
        return self.sums.get(name, (name,))

    def named(self, pattern: str, *, followers: bool = False) -> tuple[str, ...]:
        """The operators that a name, or several patterns as of a shell between spaces, stand for.

        Without ``followers`` those that follow another are found by their exact name alone. Raises
        :class:`~weft.models.transform.annotation.PlanError` where there is none.
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
        self.operations: list[Operation] = []
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
        self.operations.append(Operation(name, kind, found, tuple(inputs), names, known, attributes))
        return names

    def detached(self, name: str, how: str, tensor: str) -> str:
        """The same numbers, through which no gradient flows back: what made ``tensor`` runs forward alone, as the
        passes of a model that recycles its own output do."""
        made = self.add(name, "identity", how, [tensor])
        self.tensors[made] = replace(self.tensors[made], gradient=False)
        return made

    def build(self, *outputs: str) -> Program:
        """The program that gives ``outputs``."""
        return Program(self.name, tuple(self.operations), dict(self.tensors), outputs, notes=tuple(self.notes))
