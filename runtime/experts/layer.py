"""A layer of experts that live on several ranks, each with its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from weft.runtime.experts.exchange import exchange, exchange_counts
from weft.runtime.experts.gate import Gate
from weft.runtime.experts.products import grouped_product

__all__ = ["Expert", "ExpertLayer", "ExpertPlacement", "experts_in"]


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """``holders``: by expert, the ranks of ``ranks`` that hold it, rising. An expert on several is replicated: each of
    them computes it for its own tokens and its share of the others'."""

    ranks: int
    holders: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for expert, ranks in enumerate(self.holders):
            if not ranks or list(ranks) != sorted(set(ranks)) or not 0 <= ranks[0] <= ranks[-1] < self.ranks:
                raise ValueError(f"expert {expert} is on the ranks {list(ranks)}, they must rise within 0 to "
                                 f"{self.ranks - 1}, at least one")

    @classmethod
    def even(cls, experts: int, ranks: int) -> ExpertPlacement:
        """As many on each rank, in order. Raises ``ValueError`` where that cannot be."""
        if ranks < 1 or experts < 1 or experts % ranks:
            raise ValueError(f"{experts} experts do not divide among {ranks} ranks evenly: give a multiple, or say "
                             "which ranks hold each")
        return cls(ranks, tuple((expert * ranks // experts,) for expert in range(experts)))

    @classmethod
    def replicated(cls, experts: int, ranks: int) -> ExpertPlacement:
        """All experts on every rank."""
        return cls(ranks, (tuple(range(ranks)),) * experts)

    def on(self, rank: int) -> tuple[int, ...]:
        """The experts that ``rank`` holds."""
        return tuple(expert for expert, ranks in enumerate(self.holders) if rank in ranks)

    def target(self, expert: int, rank: int) -> int:
        """Where a token of ``rank`` goes for ``expert``: nowhere else if it is here."""
        ranks = self.holders[expert]
        return rank if rank in ranks else ranks[rank % len(ranks)]


class Expert(nn.Module):
    """A feed-forward part: ``up`` (hidden, inner), GELU, ``down`` (inner, hidden)."""

    def __init__(self, hidden: int, inner: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(hidden, inner, dtype=dtype).normal_(std=hidden**-0.5))
        self.down = nn.Parameter(torch.empty(inner, hidden, dtype=dtype).normal_(std=inner**-0.5))


class ExpertLayer(nn.Module):
    """Tokens through the experts that ``gate`` gives them, wherever these are.

    Without a ``group`` of ranks all experts are here. ``placement`` says who holds what; the parameters of those here
    are ``experts.<number>.up`` and ``.down``, the same names on any rank. After a forward, :attr:`loss` is the gate's
    auxiliary loss of this rank's tokens and :attr:`density` the experts that one of them used on average.
    """

    def __init__(self, gate: Gate, hidden: int, inner: int, placement: ExpertPlacement, rank: int = 0,
                 group: dist.ProcessGroup | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if gate.logits.out_features != len(placement.holders):
            raise ValueError(f"the gate chooses from {gate.logits.out_features} experts, but {len(placement.holders)} "
                             "are placed")
        self.gate, self.hidden, self.inner, self.placement = gate, hidden, inner, placement
        self.rank, self.group, self.dtype = rank, group, dtype
        # Every rank draws all experts' first weights, so that these do not depend on where they are.
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
        """The expert of that number, which is on this rank."""
        found = self.experts[str(number)]
        assert isinstance(found, Expert)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (..., hidden) to the weighted sum of its experts' results."""
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
        """``rows``, sorted by rank and expert, through their experts and back."""
        experts, ranks = len(target), self.placement.ranks
        if ranks == 1:
            return self._local(rows, torch.bincount(expert, minlength=experts).tolist())
        sent = torch.bincount(target[expert] * experts + expert, minlength=ranks * experts).reshape(ranks, experts)
        received = exchange_counts(sent, self.group)
        out, back = sent.sum(1).tolist(), received.sum(1).tolist()
        rows = exchange(rows, out, back, self.group)
        # From every rank rows come by expert: brought together they are those of the first expert, of the next ...
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
