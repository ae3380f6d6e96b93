"""The instructions of one rank in a hand-written plan: compute a part, assemble a piece, take part in a collective.

Tensors have keys that are local to the rank. The instructions of all ranks follow one global order, in which a
communication has the same position on all its ranks, so there is no deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: First element and the one after the last, by dimension.
Span: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class KernelCall:
    """One part of an operator. ``kind``: its kernel. ``inputs``, ``outputs``: the names of each tensor's dimensions; a
    dimension with several names is their product. ``sizes``, ``starts``: the number of indices of each name in the
    part, and the first one."""

    kind: str
    inputs: tuple[tuple[tuple[str, ...], ...], ...]
    outputs: tuple[tuple[tuple[str, ...], ...], ...]
    sizes: Mapping[str, int]
    starts: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operand:
    """An input, as a sum of terms: the keys of tensors, each with the elements that are read."""

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
    """A collective of the ranks ``group``, this rank included. ``had``: the ranks in the order of their input parts.
    ``get``: the ranks in the order of their output parts. ``source``: the gathered dimension. ``target``: the split
    dimension."""

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
    """Keep number ``index`` of ``parts`` along ``dimension``. Without a dimension, index 0 keeps the full tensor, and
    others are zeros."""

    key: str
    into: str
    dimension: int | None
    parts: int
    index: int


@dataclass(frozen=True)
class Exchange:
    """Messages between pairs of ranks. ``sends``: the elements of ``key`` for other ranks. ``receives``: the elements
    from other ranks, which are summed in a piece of ``shape`` under ``into`` (``None`` if nothing is received).
    ``dtype``: of the elements, if it differs from the parameters'."""

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
    """The program of one rank. ``groups``: the groups of all ranks' collectives. ``given``: the external inputs by key,
    each a name and its elements. ``made``: by output, this rank's parts of it: the key, the elements, and the number of
    the term and of all terms. ``carried``: by key of an input, the key and the elements that replace it in the next
    step."""

    rank: int
    instructions: tuple[Instruction, ...]
    groups: tuple[tuple[int, ...], ...]
    given: Mapping[str, tuple[str, Span]]
    made: Mapping[str, tuple[tuple[str, Span, tuple[int, int]], ...]]
    carried: Mapping[str, tuple[str, Span]] = field(default_factory=dict)
