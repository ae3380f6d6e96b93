"""One rank's instructions in a hand-written plan: compute a part, assemble a piece, take part in a collective.

Tensors have keys, local to the rank. All ranks have their instructions in one common order, and the ranks of a
communication have it at the same place of that order: nothing can wait in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: First element and the one after the last, by dimension.
Span: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class KernelCall:
    """One part of an operator: its kernel, the names of each tensor's dimensions (several for one dimension that is
    their product), the number of indices of each name in the part, and where they begin."""

    kind: str
    inputs: tuple[tuple[tuple[str, ...], ...], ...]
    outputs: tuple[tuple[tuple[str, ...], ...], ...]
    sizes: Mapping[str, int]
    starts: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operand:
    """An input as a sum: keys of tensors, each with the elements that are read."""

    terms: tuple[tuple[str, Span], ...]


@dataclass(frozen=True)
class Compute:
    """Run a kernel; results are stored under ``outputs``."""

    call: KernelCall
    inputs: tuple[Operand, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Copy:
    """Add elements ``source`` of the tensor under ``key`` to the elements ``target`` of a piece."""

    key: str
    source: Span
    target: Span


@dataclass(frozen=True)
class Piece:
    """A tensor of ``shape``, assembled from others of this rank."""

    key: str
    shape: tuple[int, ...]
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Collective:
    """One collective of the ranks ``group``, of which this is one. ``had``: the ranks in the order of their input
    parts, ``get``: in the order of their output parts. ``source``: the gathered dimension, ``target``: the split
    one."""

    kind: Literal["all_gather", "all_to_all", "all_reduce", "reduce_scatter"]
    key: str
    into: str
    had: tuple[int, ...]
    get: tuple[int, ...]
    source: int | None
    target: int | None

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks, ascending."""
        return tuple(sorted(self.had))


@dataclass(frozen=True)
class TakePart:
    """Keep the ``index``-th of ``parts`` along a dimension; with none, keep all, or zeros for an index above 0."""

    key: str
    into: str
    dimension: int | None
    parts: int
    index: int


@dataclass(frozen=True)
class Exchange:
    """Messages between pairs: elements of ``key`` to other ranks, others from them, added up in a piece of ``shape``
    under ``into``. A rank that receives nothing has no ``into``. ``dtype``: of the elements, where it differs from the
    parameters'."""

    key: str | None
    into: str | None
    shape: tuple[int, ...]
    sends: tuple[tuple[int, Span], ...]
    receives: tuple[tuple[int, Span], ...]
    own: tuple[tuple[Span, Span], ...] = ()
    dtype: str = ""


def reads(instruction: Compute | Piece | Collective | TakePart | Exchange) -> tuple[str, ...]:
    """The keys that an instruction reads."""
    if isinstance(instruction, Compute):
        return tuple(key for operand in instruction.inputs for key, _ in operand.terms)
    if isinstance(instruction, Piece):
        return tuple(copy.key for copy in instruction.copies)
    return () if instruction.key is None else (instruction.key,)


Instruction: TypeAlias = Compute | Piece | Collective | TakePart | Exchange


@dataclass(frozen=True)
class RankProgram:
    """``instructions`` of one rank; ``groups``: all groups of ranks of any rank's collectives; ``given``: by key its
    external inputs, a name and its elements; ``made``: by tensor, this rank's parts of it: key, elements and which of
    how many terms; ``carried``: by key of an input, the key and its elements that replace it in the next step."""

    rank: int
    instructions: tuple[Instruction, ...]
    groups: tuple[tuple[int, ...], ...]
    given: Mapping[str, tuple[str, Span]]
    made: Mapping[str, tuple[tuple[str, Span, tuple[int, int]], ...]]
    carried: Mapping[str, tuple[str, Span]] = field(default_factory=dict)
