"""One call of a step on a rank: a kernel on its tensors, or a collective with the other ranks.

Kernels are torch's, by the kinds of :class:`weft.models.communication.program.ProgramStage`.
Tensors are read and written in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.communication.channel import all_gather, all_reduce, reduce_scatter
from weft.runtime.communication.instructions import Chunk, LaneProgram, RankTensor, StageCall


def take(tensor: Tensor, chunk: Chunk | None) -> Tensor:
    """A chunk of ``tensor`` (``None``: all of it); a view where its elements need no copy."""
    if chunk is None:
        return tensor
    row, axis = (tensor.reshape(-1), 0) if chunk.axis is None else (tensor.contiguous(), chunk.axis)
    low, high = chunk.bounds(row.shape[axis])
    if chunk.pieces == 1:
        return row.narrow(axis, low, high - low)
    return in_pieces(row, axis, chunk.pieces).narrow(axis + 1, low, high - low).flatten(axis, axis + 1)


def in_pieces(tensor: Tensor, axis: int, pieces: int) -> Tensor:
    """A view with ``axis`` split into the number of the piece (all are equal) and the position in it."""
    shape = tensor.shape
    return tensor.view(*shape[:axis], pieces, shape[axis] // pieces, *shape[axis + 1:])


def place(target: Tensor, chunk: Chunk) -> Tensor | None:
    """A view of a chunk of ``target``, if it is contiguous; otherwise ``None``."""
    if chunk.pieces > 1:
        return None
    found = take(target.view(-1) if chunk.axis is None else target, chunk)
    return found if found.is_contiguous() else None


def put(target: Tensor, chunk: Chunk, value: Tensor) -> None:
    """Write a chunk of ``target``, a contiguous tensor."""
    row, axis = (target.view(-1), 0) if chunk.axis is None else (target, chunk.axis)
    low, high = chunk.bounds(row.shape[axis])
    if chunk.pieces == 1:
        there = row.narrow(axis, low, high - low)
        there.copy_(value.reshape(there.shape))
    else:
        there = in_pieces(row, axis, chunk.pieces).narrow(axis + 1, low, high - low)
        there.copy_(value.reshape(there.shape))


def slice_of(whole: Tensor, axis: int | None, ranks: int, index: int) -> Tensor:
    """Part ``index`` of ``ranks`` equal parts of a full tensor."""
    return take(whole, Chunk(axis, index, ranks))


def whole_places(value: RankTensor, ranks: int, index: int, device: torch.device) -> Tensor:
    """The positions of a rank's elements among the flattened elements of the full tensor."""
    whole = torch.arange(math.prod(value.whole), device=device).reshape(value.whole)
    return slice_of(whole, value.axis, ranks, index) if value.lies == "sliced" else whole


#: Runs ``begin`` of a collective, and returns when its result is available.
Issue: TypeAlias = Callable[[str, Callable[[], dist.Work | None]], None]


def computes_alone(call: StageCall) -> bool:
    """Whether a call needs no other rank."""
    return call.kind in (*KERNELS, "dropout", "cast", "slice") or (call.kind == "norm" and not call.over_ranks)


class Calls:
    """Runs calls of ``program`` on its rank of ``group``; ``world``: the ranks of all pipeline groups.

    ``dtypes``: the dtype by bytes per element. ``issue``: runs a collective and waits for it, on the thread of a
    network lane or another one.
    """

    def __init__(self, program: LaneProgram, group: dist.ProcessGroup, world: dist.ProcessGroup, device: torch.device,
                 dtypes: Mapping[int, torch.dtype], issue: Issue) -> None:
        self.index, self.ranks, self.values = program.index, program.ranks, program.values
        self.group, self.world, self.device, self.dtypes, self.issue = group, world, device, dtypes, issue

    def run(self, call: StageCall, inputs: Sequence[Tensor], into: Tensor | None = None) -> Tensor | None:
        """The output of ``call``; ``into``: contiguous memory that a collective may write it to. ``None`` for a send to
        another rank."""
        if call.kind in KERNELS:
            return KERNELS[call.kind](call, inputs)
        own: Mapping[str, Callable[[StageCall, Tensor, Tensor | None], Tensor | None]] = {
            "norm": self._norm, "dropout": self._dropout, "cast": self._cast,
            "slice": self._slice, "all_reduce": self._all_reduce, "reduce_scatter": self._reduce_scatter,
            "all_gather": self._all_gather, "reduce": self._reduce, "broadcast": self._broadcast, "send": self._send}
        if call.kind == "send" and not inputs:
            return self._received(call)
        return own[call.kind](call, inputs[0], into)

    # -- kernels that depend on the rank -------------------------------------------------------------------------------

    def _norm(self, call: StageCall, tensor: Tensor, _: Tensor | None) -> Tensor:
        square = tensor.square().sum()
        if call.over_ranks:
            self.issue(call.stage, lambda: all_reduce(square, self.group))
        return square.sqrt()

    def _dropout(self, call: StageCall, tensor: Tensor, _: Tensor | None) -> Tensor:
        places = take(whole_places(self.values[call.outputs[0]], self.ranks, self.index, self.device), call.chunk)
        keep = dropped(places, call.attributes["rate"], call.attributes["seed"])
        return tensor * keep.to(tensor.dtype).reshape(tensor.shape)

    def _cast(self, call: StageCall, tensor: Tensor, _: Tensor | None) -> Tensor:
        return tensor.to(self.dtypes[call.attributes["itemsize"]])

    def _slice(self, call: StageCall, tensor: Tensor, _: Tensor | None) -> Tensor:
        return slice_of(tensor, call.axis, self.ranks, self.index)

    # -- collectives ---------------------------------------------------------------------------------------------------

    def _all_reduce(self, call: StageCall, tensor: Tensor, into: Tensor | None) -> Tensor:
        found = _copied(tensor, into)
        self.issue(call.stage, lambda: all_reduce(found, self.group))
        return found

    def _reduce_scatter(self, call: StageCall, tensor: Tensor, into: Tensor | None) -> Tensor:
        every, axis = (tensor.reshape(-1), 0) if call.axis is None else (tensor, call.axis)
        parts = in_pieces(every.contiguous(), axis, self.ranks).movedim(axis, 0).contiguous()
        mine = parts.new_empty(parts.shape[1:]) if into is None or into.shape != parts.shape[1:] else into
        self.issue(call.stage, lambda: reduce_scatter(mine.view(-1), parts.view(-1), self.group))
        return mine

    def _all_gather(self, call: StageCall, tensor: Tensor, into: Tensor | None) -> Tensor:
        mine = tensor.contiguous()
        every = mine.new_empty((self.ranks, *mine.shape))
        self.issue(call.stage, lambda: all_gather(every.view(-1), mine.view(-1), self.group))
        axis = call.axis or 0
        found = every.movedim(0, axis).flatten(axis, axis + 1)
        # Other calls of a fused stage read it in its shape; a chunk of flattened elements stays flat.
        return found if call.chunk is not None else found.reshape(self.values[call.outputs[0]].shape)

    def _reduce(self, call: StageCall, tensor: Tensor, into: Tensor | None) -> Tensor:
        found, root = _copied(tensor, into), call.attributes["root"]
        self.issue(call.stage, lambda: dist.reduce(found, dist.get_global_rank(self.group, root), group=self.group,
                                                   async_op=True))
        return found if self.index == root else found.zero_()

    def _broadcast(self, call: StageCall, tensor: Tensor, into: Tensor | None) -> Tensor:
        found, root = _copied(tensor, into), call.attributes["root"]
        self.issue(call.stage, lambda: dist.broadcast(found, dist.get_global_rank(self.group, root), group=self.group,
                                                      async_op=True))
        return found

    # -- between pipeline groups ---------------------------------------------------------------------------------------

    def _send(self, call: StageCall, tensor: Tensor, _: Tensor | None) -> None:
        assert call.peers is not None
        sent, target = tensor.contiguous(), dist.get_global_rank(self.world, call.peers[1])
        self.issue(call.stage, lambda: dist.isend(sent, target, group=self.world))

    def _received(self, call: StageCall) -> Tensor:
        assert call.peers is not None
        shape = list(self.values[call.outputs[0]].shape)
        if call.chunk is not None:
            shape = list(take(torch.empty(shape, device="meta"), call.chunk).shape)
        found = torch.empty(shape, dtype=self.dtypes[self.values[call.outputs[0]].itemsize], device=self.device)
        source = dist.get_global_rank(self.world, call.peers[0])
        self.issue(call.stage, lambda: dist.irecv(found, source, group=self.world))
        return found


def _copied(tensor: Tensor, into: Tensor | None) -> Tensor:
    """A contiguous copy, in ``into`` if that fits."""
    if into is not None and into.numel() == tensor.numel():
        return into.copy_(tensor.reshape(into.shape))
    return tensor.clone(memory_format=torch.contiguous_format)


#: ``kernel(call, inputs)``.
Kernel: TypeAlias = Callable[[StageCall, Sequence[Tensor]], Tensor]


def dropped(places: Tensor, rate: float, seed: int | Tensor) -> Tensor:
    """The dropout factors of the elements at global ``places``: 0 with probability ``rate``, else 1 / (1 - ``rate``).

    Positions are hashed by the finalizer of SplitMix64 (Steele et al., OOPSLA 2014), modulo 2**64, so that the dropped
    elements do not depend on the division into slices.
    """
    bits = places.to(torch.int64) + (torch.as_tensor(seed) + 1) * _wrapped(0x9E3779B97F4A7C15)
    bits = (bits ^ _shifted(bits, 30)) * _wrapped(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _wrapped(0x94D049BB133111EB)
    bits = bits ^ _shifted(bits, 31)
    share = _shifted(bits, 11).to(torch.float64) / 2**53
    return (share >= rate).to(torch.float64) / (1.0 - rate)


def _wrapped(number: int) -> int:
    """``number`` as a signed 64-bit number."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A logical shift to the right."""
    return torch.bitwise_and(bits >> by, 2 ** (64 - by) - 1)


def _pointwise(call: StageCall, inputs: Sequence[Tensor]) -> Tensor:
    assert call.function is not None
    widest = _widest(inputs)  # torch does not promote by tensors of dimension 0
    found = call.function(torch, *(tensor.to(widest) for tensor in inputs), **call.attributes)
    assert isinstance(found, Tensor)
    return found.to(widest)


def _widest(inputs: Sequence[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, (tensor.dtype for tensor in inputs))


def _matmul(call: StageCall, inputs: Sequence[Tensor]) -> Tensor:
    left, right = inputs
    both = _widest(inputs)
    return left.to(both) @ right.to(both)


#: Kernels by kind; kinds that depend on the ranks are methods of :class:`Calls`.
KERNELS: Mapping[str, Kernel] = {
    "pointwise": _pointwise, "matmul": _matmul, "update": lambda call, inputs: inputs[1]}
