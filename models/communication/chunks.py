"""The cuts of a chain's tensors for running in chunks, and a rank's chunk of a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.models.communication.inference import annotated, cut_with
from weft.models.communication.program import (
    CommunicationError,
    CommunicationProgram,
    CommunicationTensor,
    Overlap,
    ProgramStage,
)


def pieces_of(tensor: CommunicationTensor, overlap: Overlap, ranks: int) -> int:
    """The equal pieces of a rank's part of ``tensor``, along its axis of ``overlap``, each of which is cut into the
    chunks: every rank's slice, or the whole part."""
    own = tensor.layout == "sliced" and tensor.axis == overlap.axes[tensor.name]
    return ranks if overlap.by_slices and not own else 1


def chunk_places(tensor: CommunicationTensor, overlap: Overlap, chunk: int, ranks: int) -> NDArray[Any]:
    """Where chunk ``chunk`` lies along the axis of a rank's part of ``tensor``, or among its flattened elements."""
    held, axis = tensor.held_shape(ranks), overlap.axes[tensor.name]
    places = np.arange(math.prod(held) if axis is None else held[axis])
    return places.reshape(pieces_of(tensor, overlap, ranks), overlap.chunks, -1)[:, chunk].reshape(-1)


@dataclass
class Cutting:
    """``axes`` as in :class:`~weft.models.communication.program.Overlap`, and ``by_slices``."""

    axes: dict[str, int | None] = field(default_factory=dict)
    by_slices: bool = False

    @classmethod
    def of(cls, program: CommunicationProgram, chain: Iterable[ProgramStage], axis: int | None) -> Cutting:
        """``chain`` cut so that its first stage's output is cut along ``axis`` (``None``: flattened).

        Raises :class:`~weft.models.communication.program.CommunicationError` if a stage cannot be cut in this way.
        """
        cutting = cls()
        leaves = [leaf for stage in chain for leaf in stage.leaves()]
        first = program.tensors[leaves[0].outputs[0]]
        made = {name for leaf in leaves for name in leaf.outputs}
        whole: set[str] = set()
        for leaf in leaves:
            if leaf.kind == "norm":
                raise CommunicationError(f"overlap: the stage {leaf.name!r} is a norm, which needs all chunks at once")
            if leaf.kind == "matmul" and leaf.inputs[0] == leaf.inputs[1]:
                raise CommunicationError(f"overlap: the stage {leaf.name!r} multiplies {leaf.inputs[0]!r} by itself, "
                                         "and needs all of it for each chunk")
            cut = [name for name in leaf.inputs if name in cutting.axes and name in made]
            (output,) = leaf.outputs
            if cut:
                cutting._assign(program, output, _forward(program, leaf, cut[0], cutting.axes[cut[0]]))
            elif program.tensors[output].shape == first.shape:
                cutting._assign(program, output, axis)
            elif leaf.kind == "slice":  # a view, free to take again for each chunk
                whole.update((*leaf.inputs, output))
                continue
            else:
                raise CommunicationError(f"overlap: the stage {leaf.name!r} makes something of another shape than the "
                                         "chain, and would make it again for each chunk")
            inputs = cut_with(leaf, program.tensors, cutting.axes[output], "overlap")
            for name, along in inputs.items():
                cutting._assign(program, name, along)
            whole.update(name for name in leaf.inputs if name not in inputs)
        for name in whole & cutting.axes.keys():
            raise CommunicationError(f"overlap: {name!r} is needed whole by one stage of the chain and in chunks by "
                                     "another")
        cutting.by_slices = any(program.tensors[name].layout == "sliced" and program.tensors[name].axis == axis
                                for name, axis in cutting.axes.items())
        return cutting

    def _assign(self, program: CommunicationProgram, name: str, axis: int | None) -> None:
        if self.axes.setdefault(name, axis) != axis:
            raise CommunicationError(f"overlap: {name!r} would be cut in two ways in one chain")
        tensor = program.tensors[name]
        if tensor.layout == "sliced" and (tensor.axis is None) != (axis is None):
            raise CommunicationError(f"overlap: {name!r} is {tensor.lies}, and chunks of the chain are not cut like it")

    def require_divided(self, program: CommunicationProgram, chunks: int) -> None:
        """Raise :class:`~weft.models.communication.program.CommunicationError` unless everything divides into equal
        chunks."""
        parts = chunks * program.ranks if self.by_slices else chunks
        for name, axis in self.axes.items():
            tensor = program.tensors[name]
            size = tensor.elements if axis is None else tensor.shape[axis]
            if size % parts:
                where = f"{name!r}" if axis is None else f"axis {axis} of {name!r}"
                per = f"{chunks} chunks" + f" of the slices of {program.ranks} ranks" * self.by_slices
                raise CommunicationError(f"overlap: {where} has {size} elements, which {per} do not divide")


def _forward(program: CommunicationProgram, leaf: ProgramStage, name: str, axis: int | None) -> int | None:
    """The cut of a stage's output if its input ``name`` is cut along ``axis``."""
    if axis is None:
        if program.tensors[name].shape != program.tensors[leaf.outputs[0]].shape:
            raise CommunicationError(f"overlap: the stage {leaf.name!r} broadcasts {name!r}, which is cut flattened")
        return None
    how = annotated(leaf, [program.tensors[one].shape for one in leaf.inputs])
    at = how.inputs[leaf.inputs.index(name)][axis]
    if at not in how.outputs[0]:
        raise CommunicationError(f"overlap: the stage {leaf.name!r} sums over the axis of {name!r} that is cut")
    return how.outputs[0].index(at)
