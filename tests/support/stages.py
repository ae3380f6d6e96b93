"""A stage of layers of several kinds, its gradients, and what ranks and one process find of stages like it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from tests.support.builders import pipeline
from tests.support.ranks import PATIENCE
from weft.runtime import Plan, Training, plan_of
from weft.runtime.ranks.session import Session, join
from weft.runtime.replay.run import Replay, run_training
from weft.runtime.replay.single_rank import single_rank
from weft.solver.baselines import baseline

WIDTH, BATCH = 6, 3
#: Parameters that are one, by stage: as :class:`Training` takes them.
Ties = Sequence[dict[int, str]]


class Mix(nn.Module):
    """All a stage may have: a linear layer used twice, one without bias, one frozen, a norm, a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.thin = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.frozen, self.norm = nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.twice(self.norm(x)))
        y = self.frozen(torch.tanh(self.thin(y))) * self.scale
        return x + torch.tanh(self.twice(y))


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def largest_difference(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> float:
    assert one.keys() == other.keys()
    worst = 0.0
    for name, left in one.items():
        right = other[name]
        assert (left is None) == (right is None), name
        if left is not None and right is not None:
            worst = max(worst, float((left - right).abs().max()))
    return worst


def apart(stages: Mapping[int, nn.Module], expected: Sequence[nn.Module]) -> float:
    """The largest difference between parameters of these stages and those expected."""
    return max(float((a - b).detach().abs().max()) for s, module in stages.items()
               for a, b in zip(module.parameters(), expected[s].parameters(), strict=True))


def inputs(step: int, micro_batch: int, rows: int = BATCH) -> Tensor:
    """The same numbers wherever a micro-batch is asked for."""
    chance = torch.Generator().manual_seed(100 * step + micro_batch)
    return torch.randn(rows, WIDTH, dtype=torch.float64, generator=chance)


def models(kind: Callable[[], nn.Module], stages: int, ties: Ties = ()) -> list[nn.Module]:
    """So many stages of a kind, with the same numbers each time; what is tied has those of its first."""
    torch.manual_seed(1)
    modules = [kind().double() for _ in range(stages)]
    for tied in tied_in(modules, ties):
        for other in tied[1:]:
            other.data.copy_(tied[0].data)
    return modules


def tied_in(modules: Sequence[nn.Module], ties: Ties) -> list[list[nn.Parameter]]:
    """The parameters of each tie."""
    return [[modules[stage].get_parameter(name) for stage, name in tie.items()] for tie in ties]


def one_rank(split: bool, micro_batches: int = 4) -> Plan:
    """Two stages on one rank."""
    return plan_of(baseline("gpipe", pipeline([0, 0], split=(1, 1) if split else None), micro_batches))


def alone(plan: Plan, part: Training) -> Replay | None:
    """Train in this process."""
    with single_rank(plan, 0, torch.device("cpu")) as session:
        return run_training(plan, session, part)


def errors_on_ranks(error: Callable[[Plan, Session, int, Ties], float], plans: Mapping[str, Plan],
                        ties: Callable[[int], Iterable[Ties]]) -> dict[str, float]:
    """By plan and ties: how far ``error`` finds training on two ranks from one process on the whole batch. Two replicas
    with three micro-batches each are one with six."""
    found = {}
    with join(PATIENCE) as session:
        for name, plan in plans.items():
            for tied in ties(len(plan.stage_ranks or ())):
                found[f"{name}, {len(tied)} ties"] = error(plan, session, 4, tied)
    with join(PATIENCE, replicas=2) as session:
        for split in (False, True):
            for tied in ties(2):
                found[f"replicas, split {split}, {len(tied)} ties"] = error(one_rank(split, 3), session, 6, tied)
    return found
