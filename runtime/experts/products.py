"""Products of rows with the weights of the expert that each belongs to, rows of an expert behind each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["grouped_product"]

#: What torch has a grouped product of; for other types there is a loop.
_GROUPED = {"cuda": (torch.bfloat16,), "cpu": (torch.bfloat16, torch.float32)}
#: It reads rows of so many bytes at once.
_ALIGNMENT = 16


def grouped_product(x: Tensor, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """Of ``x`` the first ``counts[0]`` rows times ``weights[0]`` (in, out), the next ``counts[1]`` times ``weights[1]``
    and so on: one product where torch has it, else one for each expert that has rows."""
    if not weights or not len(x):
        out = weights[0].shape[1] if weights else x.shape[1]
        return x[:0].sum(1, keepdim=True).expand(0, out)
    if _is_grouped(x, weights[0]):
        ends = torch.tensor(counts, device=x.device).cumsum(0).to(torch.int32)
        return F.grouped_mm(x, torch.stack(tuple(weights)), offs=ends)
    return torch.cat([rows @ weight for rows, weight in zip(torch.split(x, list(counts)), weights, strict=True)
                      if len(rows)])


def _is_grouped(x: Tensor, weight: Tensor) -> bool:
    sizes = (x.shape[1] * x.element_size(), weight.shape[1] * weight.element_size())
    return (x.dtype in _GROUPED.get(x.device.type, ()) and hasattr(F, "grouped_mm")
            and all(size % _ALIGNMENT == 0 for size in sizes))
