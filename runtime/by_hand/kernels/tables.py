"""Rows of tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, shape_of


def _rows(ids: Tensor, name: str, call: KernelCall) -> tuple[Tensor, Tensor]:
    own = ids.long() - call.starts.get(name, 0)
    here = (own >= 0) & (own < call.sizes[name])
    return own.where(here, torch.zeros_like(own)), here


def _embedding(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    rows, here = _rows(inputs[1], call.inputs[0][0][0], call)
    return (inputs[0][rows] * here[..., None],)


def _embedding_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, ids = inputs
    rows, here = _rows(ids, call.outputs[0][0][0], call)
    here = here & (ids != call.attributes.get("padding", -1))
    made = gradient.new_zeros(shape_of(call, call.outputs[0]))
    return (made.index_add(0, rows.reshape(-1), (gradient * here[..., None]).reshape(-1, gradient.shape[-1])),)


KERNELS.update({"embedding": _embedding, "embedding_grad": _embedding_grad})
