"""Attention: queries, keys and values, and a mask where there is one: truths, or numbers that are added."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.elementwise import aligned
from weft.runtime.by_hand.kernels.registry import KERNELS, back_of, shape_of


def _attention(at: int) -> Callable[[KernelCall], Callable[..., Tensor]]:
    """``at``: which input of the call the queries are."""
    def of(call: KernelCall) -> Callable[..., Tensor]:
        def run(*tensors: Tensor) -> Tensor:
            how = call.inputs[at:]
            lead = [name for axis in how[0][:-2] for name in axis]
            query, key = how[0][-2][0], how[1][-2][0]
            q = aligned(call, tensors[0], how[0], [*lead, query, *how[0][-1]])
            k, v = (aligned(call, tensors[i], how[i], [*lead, key, *how[i][-1]]).expand(
                *q.shape[:-2], -1, -1) for i in (1, 2))
            mask = None
            if len(tensors) > 3:
                mask = aligned(call, tensors[3], how[3], [*lead, query, key])
                mask = mask != 0 if call.attributes["mask"] == "truths" else mask.to(q.dtype)
                mask = mask.expand(*q.shape[:-1], k.shape[-2])
            if call.attributes.get("causal"):
                rows = torch.arange(call.sizes[query], device=q.device) + call.starts.get(query, 0)
                columns = torch.arange(call.sizes[key], device=q.device) + call.starts.get(key, 0)
                seen = columns[None, :] <= rows[:, None]
                mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.masked_fill(
                    ~seen, -torch.inf)
            return functional.scaled_dot_product_attention(q, k, v, mask, scale=call.attributes.get("scale"))

        return run

    return of


KERNELS["attention"] = lambda inputs, call: (_attention(0)(call)(*inputs).reshape(shape_of(call, call.outputs[0])),)
for _place in range(4):
    _back = back_of(_attention(1), _place)
    KERNELS[f"attention_grad{_place}"] = lambda inputs, call, _back=_back: _back(  # type: ignore[misc]
        [inputs[0].reshape([call.sizes[name] for axis in call.inputs[0] for name in axis]), *inputs[1:]], call)
