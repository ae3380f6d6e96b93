"""A program of computation and communication on ranks that all run it: tensors with a layout, and stages.

All ranks of a group run the same stages. A tensor is *local* (each rank has its own values, possibly terms of a sum),
*replicated* (all have the same) or *sliced* (rank i has part i of N equal ones along ``axis``; of the flattened
elements if ``axis`` is ``None``). Pipelines have several groups of N ranks each: ``send`` sends a tensor from every
rank of a group to the rank with the same number in the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from weft.models.graph.dataflow import Dataflow

Layout: TypeAlias = Literal["local", "replicated", "sliced"]
#: The source of a tensor: an input, a weight, an optimizer's state, or a stage.
Source: TypeAlias = Literal["input", "parameter", "state", "stage"]
Kind: TypeAlias = Literal["matmul", "pointwise", "norm", "dropout", "cast", "update", "all_reduce", "reduce_scatter",
                          "all_gather", "broadcast", "reduce", "slice", "send", "fused"]
#: The kinds that move data between ranks; a ``norm`` of a slice also sums one number over the ranks.
COLLECTIVES: frozenset[Kind] = frozenset({"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send"})


class CommunicationError(ValueError):
    """An invalid program, or an illegal pass: mismatched layouts, a fusion that is not convex ..."""


@dataclass(frozen=True, slots=True)
class CommunicationTensor:
    """``shape`` is that of the whole tensor, in elements of ``itemsize`` bytes; for a local one, that of each rank's.

    ``axis`` is the cut of a sliced tensor, ``None``: it is flattened, and rank i has part i of its elements. ``group``:
    the pipeline group whose ranks hold it.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout = "replicated"
    axis: int | None = None
    itemsize: int = 4
    source: Source = "stage"
    group: int = 0

    @property
    def elements(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.itemsize

    def held_shape(self, ranks: int) -> tuple[int, ...]:
        """The shape of one rank's part among ``ranks``: for a flattened slice, one dimension."""
        if self.layout != "sliced":
            return self.shape
        if self.axis is None:
            return (self.elements // ranks,)
        return tuple(size // ranks if axis == self.axis else size for axis, size in enumerate(self.shape))

    def held_bytes(self, ranks: int) -> int:
        """Bytes of one rank's part among ``ranks``."""
        return self.bytes // ranks if self.layout == "sliced" else self.bytes

    @property
    def lies(self) -> str:
        """Its layout in words: ``sliced along axis 0``, ``sliced flattened``, ``local``, ``replicated``."""
        if self.layout != "sliced":
            return self.layout
        return "sliced flattened" if self.axis is None else f"sliced along axis {self.axis}"


@dataclass(frozen=True)
class ProgramStage:
    """One stage. ``attributes`` are its non-tensor arguments, by ``kind``:

    ``pointwise``: ``function`` (a name in :mod:`weft.models.communication.functions`) and that function's own;
    ``dropout``: ``rate``, ``seed``; ``cast``: ``itemsize``; ``reduce_scatter``, ``slice``: ``axis``
    (``None``: flattened); ``reduce``, ``broadcast``: ``root``. ``update`` reads a parameter or state and its new value,
    which becomes the carried one. ``norm`` gives the root of the sum of squares, a scalar. ``matmul`` multiplies
    ``(..., m, k)`` by ``(k, n)``. ``fused`` has ``parts``, in execution order, as one kernel.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[ProgramStage, ...] = ()

    def leaves(self) -> Iterator[ProgramStage]:
        """Its elementary stages: itself, or its parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True)
class Overlap:
    """``stages``, a chain in which each reads the previous one's output, run in ``chunks``: stage j's part c runs once
    stage j - 1's part c is available, overlapping later parts of the previous stages.

    ``axes`` is the axis of each cut tensor (``None``: flattened); those not named are read whole. With ``by_slices``,
    chunk c is part c of the slice of *every* rank, so that chunk c of a collective that scatters or gathers along the
    axis involves all ranks equally; otherwise it is part c of the axis.
    """

    stages: tuple[str, ...]
    chunks: int
    axes: Mapping[str, int | None]
    by_slices: bool = False


@dataclass(frozen=True)
class CommunicationProgram(Dataflow[ProgramStage]):
    """``stages`` in an executable order, on ``ranks`` ranks (of each pipeline group).

    ``tensors`` by name; ``outputs``: its results; ``carried``: by the output of an ``update``, the parameter or state
    that it becomes in the next step. ``overlaps``: chains that run in chunks. Layouts are checked when programs are
    made: by :class:`~weft.models.communication.builder.Builder` and by the passes.

    Raises :class:`CommunicationError` for duplicate or undefined names.
    """

    name: str
    ranks: int
    stages: tuple[ProgramStage, ...]
    tensors: Mapping[str, CommunicationTensor]
    outputs: tuple[str, ...]
    carried: Mapping[str, str] = field(default_factory=dict)
    overlaps: tuple[Overlap, ...] = ()
    word: ClassVar[str] = "stage"

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise CommunicationError(f"ranks is {self.ranks}, a program runs on at least one")
        known = self.require_made(CommunicationError)
        for name in (*self.outputs, *self.carried):
            if name not in known:
                raise CommunicationError(f"the output {name!r} is made by no stage")
        chunked = [name for overlap in self.overlaps for name in overlap.stages]
        for name in chunked:
            if name not in self.by_name or chunked.count(name) > 1:
                raise CommunicationError(f"the stage {name!r} that runs in chunks is in two overlaps, or is not there")

    @property
    def steps(self) -> tuple[ProgramStage, ...]:
        """The stages."""
        return self.stages

    @cached_property
    def kept(self) -> frozenset[str]:
        """The tensors needed after the program: outputs, and those carried to the next step."""
        return frozenset((*self.outputs, *self.carried))

    def members(self, unit: ProgramStage | Overlap) -> list[ProgramStage]:
        """The stages of a chain; a stage itself."""
        return [unit] if isinstance(unit, ProgramStage) else [self.by_name[name] for name in unit.stages]

    @cached_property
    def leaves(self) -> Mapping[str, ProgramStage]:
        """Stages that are not fused, and the parts of those that are, by name."""
        return {leaf.name: leaf for stage in self.stages for leaf in stage.leaves()}

    def stage(self, name: str) -> ProgramStage:
        """The stage of that name. Raises :class:`CommunicationError` if there is none."""
        if name not in self.by_name:
            raise CommunicationError(f"there is no stage {name!r}; there are {', '.join(self.by_name)}")
        return self.by_name[name]

    def group_of(self, stage: ProgramStage | str) -> int:
        """The pipeline group that runs it; for a ``send``, the sender."""
        found = self.stage(stage) if isinstance(stage, str) else stage
        return min(self.tensors[name].group for name in (found.inputs or found.outputs))

    @property
    def groups(self) -> int:
        """The number of pipeline groups."""
        return 1 + max((tensor.group for tensor in self.tensors.values()), default=0)

    def state_bytes(self, source: Sequence[Source] = ("state",)) -> int:
        """Bytes of optimizer states (or of another ``source``) on each rank, for all groups together."""
        return sum(tensor.held_bytes(self.ranks) for tensor in self.tensors.values() if tensor.source in source)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.ranks} ranks"]
        for stage in self.stages:
            made = ", ".join(f"{name} ({self.tensors[name].lies})" for name in stage.outputs)
            inside = f" [{', '.join(part.name for part in stage.leaves())}]" if stage.parts else ""
            lines.append(f"  {stage.name}: {stage.kind}({', '.join(stage.inputs)}){inside} -> {made}")
        lines += [f"  {' -> '.join(overlap.stages)} in {overlap.chunks} chunks" for overlap in self.overlaps]
        return "\n".join(lines)
