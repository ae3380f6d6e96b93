"""The collectives of ``torch.distributed`` that split and join one tensor, by their names in this torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch.distributed as dist
from torch import Tensor

_Begin: TypeAlias = Callable[..., dist.Work | None]

#: Renamed in 2.13, where the old ones warn.
_REDUCE_SCATTER: _Begin = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_GATHER: _Begin = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reduce_scatter(mine: Tensor, every: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    """Start summing ``every`` over the ranks; rank i's ``mine`` becomes part i of the sum along the first axis."""
    return _REDUCE_SCATTER(mine, every, group=group, async_op=True)


def all_gather(every: Tensor, mine: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    """Start gathering: part i of ``every`` along the first axis becomes rank i's ``mine``."""
    return _ALL_GATHER(every, mine, group=group, async_op=True)


def all_reduce(tensor: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    """Start summing ``tensor`` over the ranks, in place."""
    work: dist.Work | None = dist.all_reduce(tensor, group=group, async_op=True)
    return work
