"""Layers of a stage on several ranks: each rank has a share, and the ranks meet in collectives.

The shares are those of Megatron-LM (Shoeybi et al., 2019, section 3): a linear layer cut by columns gives each rank
some outputs, the next one cut by rows sums the ranks' partial results; an embedding or a head is cut by vocabulary, and
the cross-entropy of split scores needs three numbers a token from the others, not the scores. Shares may be of unequal
size. Inputs, outputs and input gradients at the outside are whole on every rank.

Every forward and backward enters its collectives in one order, given by the module's code; the program ensures that
different micro-batches do not mix on different ranks, which is proven before launch (:mod:`weft.runtime.plan.check`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def share(size: int, group: dist.ProcessGroup) -> slice:
    """This rank's part of ``size`` rows or columns."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    return slice(size * rank // count, size * (rank + 1) // count)


def sharded(parameter: nn.Parameter) -> nn.Parameter:
    """Mark ``parameter`` as one rank's share of a larger one, and return it."""
    parameter.weft_sharded = True  # type: ignore[attr-defined]
    return parameter


def is_sharded(parameter: nn.Parameter) -> bool:
    """Whether it has been marked by :func:`sharded`."""
    return bool(getattr(parameter, "weft_sharded", False))


def enter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Pass ``x``, which is whole, to the ranks' shares of the computation: gradients are summed coming back."""
    y: Tensor = _Enter.apply(x, group)  # type: ignore[no-untyped-call]
    return y


def leave(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the ranks' ``x``, leaving their shares; each gets the whole gradient back."""
    y: Tensor = _Leave.apply(x, group)  # type: ignore[no-untyped-call]
    return y


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _summed(x: Tensor, group: dist.ProcessGroup, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, operation, group=group)
    return x


class ColumnLinear(nn.Module):
    """This rank's outputs of the linear layer ``whole``: whole inputs in, a share of the last dimension out.

    With ``inside``, its input has already been through :func:`enter` (several layers that read one tensor enter once).
    """

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup, inside: bool = False) -> None:
        super().__init__()
        self.group, self.inside = group, inside
        mine = share(whole.out_features, group)
        self.shard = _linear(whole.weight[mine], None if whole.bias is None else whole.bias[mine])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shard(x if self.inside else enter(x, self.group))
        return y


class RowLinear(nn.Module):
    """The linear layer ``whole`` on inputs of which each rank has a share of the last dimension; whole outputs."""

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.shard = _linear(whole.weight[:, share(whole.in_features, group)], None)
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        y = leave(self.shard(x), self.group)
        return y if self.bias is None else y + self.bias


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A plain ``nn.Linear``, whose weight gradient a split backward can defer, of sharded parameters."""
    rows, columns = weight.shape
    linear = nn.Linear(columns, rows, bias is not None, device="meta")
    linear.weight = sharded(nn.Parameter(weight.detach().clone()))
    if bias is not None:
        linear.bias = sharded(nn.Parameter(bias.detach().clone()))
    return linear


class VocabularyEmbedding(nn.Module):
    """The embedding ``whole`` with this rank's share of the vocabulary; whole outputs."""

    def __init__(self, whole: nn.Embedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, mine = group, share(whole.num_embeddings, group)
        self.first, self.end = mine.start, mine.stop
        self.weight = sharded(nn.Parameter(whole.weight[mine].detach().clone()))

    def forward(self, tokens: Tensor) -> Tensor:
        elsewhere = (tokens < self.first) | (tokens >= self.end)
        found = nn.functional.embedding((tokens - self.first).masked_fill(elsewhere, 0), self.weight)
        return leave(found.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.group)


def parallel_cross_entropy(scores: Tensor, targets: Tensor, group: dist.ProcessGroup, vocabulary: int) -> Tensor:
    """Mean cross-entropy in nats of ``scores`` (..., this rank's share of ``vocabulary``) against whole ``targets``."""
    loss: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        scores.flatten(0, -2), targets.flatten(), group, share(vocabulary, group).start)
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor, group: dist.ProcessGroup, first: int) -> Tensor:
        wide = scores if scores.dtype == torch.float64 else scores.float()
        wide = wide - _summed(wide.amax(-1, keepdim=True), group, dist.ReduceOp.MAX)
        place = (targets - first).unsqueeze(-1)
        elsewhere = (place < 0) | (place >= scores.shape[-1])
        place = place.masked_fill(elsewhere, 0)
        found = wide.gather(-1, place).masked_fill(elsewhere, 0.0)
        powers = wide.exp()
        sums = _summed(torch.cat([powers.sum(-1, keepdim=True), found], -1), group)
        probabilities = powers / sums[:, :1]
        ctx.save_for_backward(probabilities, place, elsewhere)
        ctx.dtype = scores.dtype
        return (sums[:, 0].log() - sums[:, 1]).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, place, elsewhere = ctx.saved_tensors
        ones = (~elsewhere).to(probabilities.dtype)
        slope = probabilities.scatter_add(-1, place, -ones) * (gradient / len(probabilities))
        return slope.to(ctx.dtype), None, None, None
