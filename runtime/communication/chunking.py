"""Chunks of torch tensors: reading and writing them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.runtime.communication.instructions import Chunk, RankTensor


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
    """A view with ``axis`` split in two: the number of an equal piece, and the place in it."""
    shape = tensor.shape
    return tensor.view(*shape[:axis], pieces, shape[axis] // pieces, *shape[axis + 1:])


def place(target: Tensor, chunk: Chunk) -> Tensor | None:
    """The memory of a chunk of ``target``, if that is contiguous."""
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
    """Part ``index`` of ``ranks`` equal ones of a whole tensor."""
    return take(whole, Chunk(axis, index, ranks))


def whole_places(value: RankTensor, ranks: int, index: int, device: torch.device) -> Tensor:
    """The places of a rank's elements of a tensor among the whole one's flattened elements."""
    whole = torch.arange(math.prod(value.whole), device=device).reshape(value.whole)
    return slice_of(whole, value.axis, ranks, index) if value.lies == "sliced" else whole
