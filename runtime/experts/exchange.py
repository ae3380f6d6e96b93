"""Rows that go from every rank to every rank, as many as each pair needs: forward, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["exchange", "exchange_counts"]


def exchange(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
    """What this rank gets where rank i sends to rank j the next ``sent[j]`` of its ``rows``; ``received[i]`` rows come
    from rank i, in the order of ranks. Gradients go the other way.

    All ranks call it together, and all run its backward together, also those that have no rows: so what comes out needs
    a gradient on every rank wherever gradients are made.
    """
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    found: Tensor = _Exchange.apply(rows, anchor, list(sent), list(received), group)  # type: ignore[no-untyped-call]
    return found


def exchange_counts(counts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Row i of what comes out is this rank's row of the ``counts`` (ranks, n) of rank i."""
    found = torch.empty_like(counts)
    dist.all_to_all_single(found, counts.contiguous(), group=group)
    return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, anchor: Tensor, sent: list[int], received: list[int],
                group: dist.ProcessGroup | None) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _moved(rows, sent, received, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _moved(gradient, ctx.received, ctx.sent, ctx.group), None, None, None, None


def _moved(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None) -> Tensor:
    found = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found
