"""Tensors of no input, types, and chance. What has no input is made on torch's device of the moment."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, shape_of

_LOW = 0xFFFFFFFF


def _dtype(call: KernelCall) -> torch.dtype:
    found = getattr(torch, call.attributes["dtype"])
    assert isinstance(found, torch.dtype)
    return found


def _full(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    return (torch.full(shape_of(call, call.outputs[0]), call.attributes["value"], dtype=_dtype(call)),)


def _range(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    name = call.outputs[0][0][0]
    places = torch.arange(call.sizes[name]) + call.starts.get(name, 0)
    return ((call.attributes["start"] + places * call.attributes["stride"]).to(_dtype(call)),)


def _hash(places: Tensor) -> Tensor:
    places = places & _LOW
    places = ((places ^ (places >> 16)) * 0x85EBCA6B) & _LOW
    places = ((places ^ (places >> 13)) * 0xC2B2AE35) & _LOW
    return places ^ (places >> 16)


def _dropout(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    x, seed = inputs
    drop = call.attributes["probability"]
    place = torch.zeros([1] * x.ndim, dtype=torch.int64, device=x.device)
    for axis, (names, length) in enumerate(zip(call.inputs[0], call.attributes["lengths"], strict=True)):
        first = call.starts.get(names[0], 0) if names else 0
        along = torch.arange(x.shape[axis], device=x.device) + first
        place = place * length + along.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    start = _hash(seed.long() * 0x9E3779B1 + call.attributes["own"])
    drawn = _hash(_hash(place) + start).to(torch.float64) / 2.0**32
    return (torch.where(drawn >= drop, x / (1 - drop), torch.zeros_like(x)),)


KERNELS.update({
    "full": _full, "range": _range, "cast": lambda inputs, call: (inputs[0].to(_dtype(call)),), "dropout": _dropout})
