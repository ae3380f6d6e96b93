"""Buffers as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft.runtime.plan.buffers import Layout, MessageTensor

__all__ = ["ALIGNED", "allocate", "can_go_as_it_lies", "layout_of", "view", "whole"]

ALIGNED = 64  # bytes: a cache line, and what vector instructions like


def whole(size: int) -> int:
    """``size`` in whole lines."""
    return -(-size // ALIGNED) * ALIGNED


def can_go_as_it_lies(tensor: Tensor) -> bool:
    """Whether the bytes of ``tensor`` are its numbers in order: it is in one piece, and not a view that torch has to
    conjugate or to negate where it reads it."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def layout_of(tensors: Mapping[str, tuple[Sequence[int | None], torch.dtype]]) -> Layout:
    """The layout of tensors of these shapes and types, one after another; a length of ``None`` is not known."""
    if any(None in shape for shape, _ in tensors.values()):
        return Layout(tuple(MessageTensor(name, tuple(shape), _name(dtype), 0)
                            for name, (shape, dtype) in tensors.items()), 0)
    parts, offset = [], 0
    for name, (shape, dtype) in tensors.items():
        part = MessageTensor(name, tuple(shape), _name(dtype), whole(offset))
        parts.append(part)
        offset = part.offset + math.prod(_lengths(part)) * dtype.itemsize
    return Layout(tuple(parts), offset)


def allocate(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    """Bytes for each size. Each is a tensor of its own: views of one tensor would share the counter by which autograd
    notices that something it keeps was written to."""
    return [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]


def view(memory: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The tensors of ``layout``, which is known, in ``memory`` (a 1-d tensor of bytes)."""
    return {part.name: _view(memory, part) for part in layout.parts}


def _view(memory: Tensor, part: MessageTensor) -> Tensor:
    dtype = getattr(torch, part.dtype)
    assert isinstance(dtype, torch.dtype)
    shape = _lengths(part)
    return memory[part.offset:part.offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _lengths(part: MessageTensor) -> tuple[int, ...]:
    assert None not in part.shape, part
    return tuple(length for length in part.shape if length is not None)
