"""A small training with all that a checkpoint must hold, by a plan of one or more ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.support.builders import chain, pipeline
from weft.runtime import Boundary, MasterWeights, Plan, Training, plan_of
from weft.solver.baselines import baseline

WIDTH, STEPS = 6, 6


class Noisy(nn.Module):
    """A stage with parameters, a buffer that changes in every forward, and dropout: all that has to be restored."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(torch.tanh(self.norm(self.layer(x))))
        return y


def training(plan: Plan, rank: int, width: int = WIDTH, optimizer: Any = torch.optim.AdamW) -> Training:
    """In bf16, with fp32 masters, which know more than the weights do."""
    assert plan.stage_ranks is not None
    torch.manual_seed(3 + rank)
    mine = {s: Noisy(width).to(torch.bfloat16) for s, where in enumerate(plan.stage_ranks) if where == rank}
    masters = MasterWeights([p for module in mine.values() for p in module.parameters()])

    def batch(step: int, micro_batch: int) -> Tensor:
        chance = torch.Generator().manual_seed(1000 * step + micro_batch)
        return torch.randn(4, width, generator=chance).to(torch.bfloat16)

    return Training(mine, [Boundary((4, width), torch.bfloat16)] * (len(plan.stage_ranks) - 1), batch,
                    targets=lambda s, m: batch(s + 50, m), loss=lambda y, t: ((y - t).float() ** 2).mean(), steps=STEPS,
                    masters=masters, optimizer=optimizer(masters.parameters(), lr=0.05))


def wider(plan: Plan, rank: int) -> Training:
    return training(plan, rank, WIDTH + 1)


def a_plan(ranks: int = 2) -> Plan:
    return plan_of(baseline("1f1b", pipeline(chain(ranks)), 4))
