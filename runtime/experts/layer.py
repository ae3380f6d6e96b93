"""A layer of experts on several ranks, each rank with its own tokens.

Rows are exchanged by an all-to-all of variable sizes, which is differentiable, and multiplied with the weights of their
experts in grouped products of rows sorted by expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft.runtime.experts.gate import Gate


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """The ranks of experts. ``holders``: for each expert, the ranks that have it, ascending. An expert on several ranks
    is replicated: each of them computes it for its own tokens and a share of the other ranks' tokens."""

    ranks: int
    holders: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for expert, ranks in enumerate(self.holders):
            if not ranks or list(ranks) != sorted(set(ranks)) or not 0 <= ranks[0] <= ranks[-1] < self.ranks:
                raise ValueError(f"expert {expert} is on the ranks {list(ranks)}, they must rise within 0 to "
                                 f"{self.ranks - 1}, at least one")

    @classmethod
    def even(cls, experts: int, ranks: int) -> ExpertPlacement:
        """The same number of experts on each rank, in order. Raises ``ValueError`` if they do not divide evenly."""
        if ranks < 1 or experts < 1 or experts % ranks:
            raise ValueError(f"{experts} experts do not divide among {ranks} ranks evenly: give a multiple, or say "
                             "which ranks hold each")
        return cls(ranks, tuple((expert * ranks // experts,) for expert in range(experts)))

    @classmethod
    def replicated(cls, experts: int, ranks: int) -> ExpertPlacement:
        """All experts on every rank."""
        return cls(ranks, (tuple(range(ranks)),) * experts)

    def on(self, rank: int) -> tuple[int, ...]:
        """The experts on ``rank``."""
        return tuple(expert for expert, ranks in enumerate(self.holders) if rank in ranks)

    def target(self, expert: int, rank: int) -> int:
        """The rank that computes ``expert`` for a token of ``rank``: the same one if it has the expert."""
        ranks = self.holders[expert]
        return rank if rank in ranks else ranks[rank % len(ranks)]


class Expert(nn.Module):
    """A feed-forward part: ``up`` (hidden, inner), GELU, ``down`` (inner, hidden)."""

    def __init__(self, hidden: int, inner: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(hidden, inner, dtype=dtype).normal_(std=hidden**-0.5))
        self.down = nn.Parameter(torch.empty(inner, hidden, dtype=dtype).normal_(std=inner**-0.5))


class ExpertLayer(nn.Module):
    """Applies the experts that ``gate`` selects, on any rank, to this rank's tokens.

    Without a ``group`` of ranks all experts are local. ``placement``: the ranks of experts. The parameters of local
    experts are ``experts.<number>.up`` and ``.down``, with the same names on any rank. After a forward, :attr:`loss` is
    the gate's auxiliary loss of this rank's tokens and :attr:`density` the mean number of experts per token.
    """

    def __init__(self, gate: Gate, hidden: int, inner: int, placement: ExpertPlacement, rank: int = 0,
                 group: dist.ProcessGroup | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if gate.logits.out_features != len(placement.holders):
            raise ValueError(f"the gate chooses from {gate.logits.out_features} experts, but {len(placement.holders)} "
                             "are placed")
        self.gate, self.hidden, self.inner, self.placement = gate, hidden, inner, placement
        self.rank, self.group, self.dtype = rank, group, dtype
        # Every rank draws the initial weights of all experts, so that these do not depend on the placement.
        drawn = [Expert(hidden, inner, dtype) for _ in placement.holders]
        self.experts = nn.ModuleDict({str(expert): drawn[expert] for expert in placement.on(rank)})
        self.loss: Tensor = torch.zeros(())
        self.density = 0.0
        self.entries = 0

    @property
    def here(self) -> tuple[int, ...]:
        """The experts on this rank."""
        return self.placement.on(self.rank)

    def expert(self, number: int) -> Expert:
        """Expert ``number``, which is on this rank."""
        found = self.experts[str(number)]
        assert isinstance(found, Expert)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` (..., hidden) to the weighted sum of its experts' results."""
        tokens = x.reshape(-1, self.hidden)
        weights, mask, self.loss = self.gate(tokens)
        token, expert = mask.nonzero(as_tuple=True)
        self.entries = len(token)
        self.density = len(token) / max(1, len(tokens))
        target = torch.tensor([self.placement.target(e, self.rank) for e in range(mask.shape[1])], device=x.device)
        order = torch.argsort(target[expert] * mask.shape[1] + expert, stable=True)
        token, expert = token[order], expert[order]
        results = self._computed(tokens[token], expert, target)
        weighted = weights[token, expert].unsqueeze(1) * results
        return torch.zeros_like(tokens).index_add(0, token, weighted).reshape(x.shape)

    def _computed(self, rows: Tensor, expert: Tensor, target: Tensor) -> Tensor:
        """The results of the experts for ``rows``, which are sorted by rank and expert."""
        experts, ranks = len(target), self.placement.ranks
        if ranks == 1:
            return self._local(rows, torch.bincount(expert, minlength=experts).tolist())
        sent = torch.bincount(target[expert] * experts + expert, minlength=ranks * experts).reshape(ranks, experts)
        received = exchange_counts(sent, self.group)
        out, back = sent.sum(1).tolist(), received.sum(1).tolist()
        rows = exchange(rows, out, back, self.group)
        # Rows from each rank are sorted by expert: regroup them by expert over all ranks.
        kinds = torch.arange(experts, device=rows.device).repeat(ranks).repeat_interleave(received.flatten())
        order = torch.argsort(kinds, stable=True)
        found = self._local(rows[order], received.sum(0).tolist())
        return exchange(found[torch.argsort(order)], back, out, self.group)

    def _local(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        held = [self.expert(number) for number in self.here]
        mine = [counts[expert] for expert in self.here]
        inner = F.gelu(grouped_product(rows, mine, [expert.up for expert in held]))
        return grouped_product(inner, mine, [expert.down for expert in held])


def experts_in(module: nn.Module) -> dict[str, ExpertLayer]:
    """The layers of experts in ``module``, by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, ExpertLayer)}


#: The types for which torch has a grouped product; for others there is a loop.
_GROUPED = {"cuda": (torch.bfloat16,), "cpu": (torch.bfloat16, torch.float32)}
#: It reads rows in units of this many bytes.
_ALIGNMENT = 16


def grouped_product(x: Tensor, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """The first ``counts[0]`` rows of ``x`` times ``weights[0]`` (in, out), the next ``counts[1]`` times ``weights[1]``
    and so on: one grouped product if torch supports it, otherwise one product per expert with rows."""
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


def exchange(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
    """All-to-all: each rank sends rank j the next ``sent[j]`` of its ``rows``; returns the ``received[i]`` rows from
    each rank i, in the order of ranks. The backward sends gradients the other way.

    All ranks call it together and run its backward together, also without rows; so the result must require a gradient
    on every rank if it does on any.
    """
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    found: Tensor = _Exchange.apply(rows, anchor, list(sent), list(received), group)  # type: ignore[no-untyped-call]
    return found


def exchange_counts(counts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Row i of the result is this rank's row of the ``counts`` (ranks, n) of rank i."""
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
