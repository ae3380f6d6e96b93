"""A module to train with sliced states, its data, and the plain rules on one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, ROWS = 6, 2


class Model(nn.Module):
    """In double precision: an attention that reads its projection without calling it, a layer that some batches of
    some ranks alone use and one that none uses, sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(WIDTH, 7)
        self.attention = nn.MultiheadAttention(7, 1, bias=False, batch_first=True)
        self.rare = nn.Linear(7, 7)
        self.last = nn.Linear(7, WIDTH)
        self.never = nn.Linear(3, 2)
        self.double()

    def forward(self, x: Tensor, with_rare: bool) -> Tensor:
        y = torch.tanh(self.first(x))
        y = y + self.attention(y, y, y, need_weights=False)[0]
        y = y + self.rare(y) if with_rare else y
        found: Tensor = self.last(y)
        return found


def losses_of(model: nn.Module, step: int, ranks: int) -> list[Tensor]:
    """Each rank's loss in a step; only rank 0 uses the rare layer, and only in every other step."""
    draw = torch.Generator().manual_seed(step)
    data = torch.randn(ranks, ROWS, 3, WIDTH, generator=draw, dtype=torch.float64)
    return [model(data[rank], rank == 0 and step % 2 == 1).square().mean() for rank in range(ranks)]


class LAMB:
    """As You et al. (2020) write it, one parameter after the other."""

    def __init__(self, model: nn.Module, lr: float, weight_decay: float) -> None:
        self.parameters, self.lr, self.decay = list(model.parameters()), lr, weight_decay
        self.state: dict[nn.Parameter, dict[str, Any]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """One update of each parameter that has a gradient."""
        for w in self.parameters:
            if w.grad is None:
                continue
            state = self.state.setdefault(w, {"t": 0, "m": torch.zeros_like(w), "v": torch.zeros_like(w)})
            state["t"] += 1
            state["m"] = 0.9 * state["m"] + 0.1 * w.grad
            state["v"] = 0.999 * state["v"] + 0.001 * w.grad ** 2
            mean, square = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
            update = mean / (square.sqrt() + 1e-6) + self.decay * w
            ratio = w.norm() / update.norm() if w.norm() > 0 and update.norm() > 0 else torch.ones(())
            w.sub_(self.lr * ratio * update)


def plain_rule(rule: str, model: nn.Module, lr: float, weight_decay: float) -> Any:
    """The rule on one process: torch's where it has it."""
    if rule == "lamb":
        return LAMB(model, lr, weight_decay)
    made = torch.optim.Adam if rule == "adam" else torch.optim.AdamW
    return made(model.parameters(), lr=lr, weight_decay=weight_decay)
