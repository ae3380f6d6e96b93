"""Plans and trainings that are held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.builders import chain, pipeline
from weft.runtime import Boundary, Plan, Training, measured_problem, plan_of
from weft.runtime.checkpoint.signature import signed
from weft.runtime.measure.measure_stages import measure_stages, measured_ties
from weft.runtime.train.agreement import Allowed
from weft.solver.baselines import baseline

WIDTH = 6
CPU = torch.device("cpu")


def training_of(modules: Sequence[nn.Module], devices: Sequence[int], rank: int, width: int = WIDTH, steps: int = 1,
                ties: Sequence[dict[int, str]] = ()) -> Training:
    mine = {s: modules[s] for s, device in enumerate(devices) if device == rank}

    def data(step: int, micro_batch: int) -> Tensor:
        return torch.ones(2, width)

    parameters = list(dict.fromkeys(p for module in mine.values() for p in module.parameters()))
    return Training(mine, [Boundary((2, width))] * (len(devices) - 1), data, data, nn.functional.mse_loss, steps=steps,
                    optimizer=torch.optim.SGD(parameters, 0.1) if parameters else None, ties=ties)


def a_plan(stages: int = 2, *, split: tuple[float, float] | None = (1, 1)) -> Plan:
    return plan_of(baseline("greedy", pipeline(chain(stages), split=split), 2))


def sign(plan: Plan, *modules: nn.Module, allowed: Allowed | None = None, **changed: Any) -> tuple[Plan, list[str]]:
    told: list[str] = []
    devices = [rank for rank, in plan.stage_groups or ()]
    return signed(plan, lambda plan, rank: training_of(modules, devices, rank, **changed), allowed, told.append), told


def measured(modules: Sequence[nn.Module], backward: str = "full", **changed: Any) -> Plan:
    whole = training_of(modules, [0] * len(modules), 0, **changed)
    costs = measure_stages(whole, device=CPU, repeats=1)
    return plan_of(baseline("1f1b", measured_problem(costs, backward=backward, ties=measured_ties(whole)), 2))


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))
