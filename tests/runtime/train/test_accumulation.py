"""AdamA: Adam's moments gather the micro-batches' gradients, in the executor and out of it.

Run as a program (``python -m tests.runtime.train.test_accumulation``), this file is one rank of what its tests
launch.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support import chain, finished, pipeline, v
from tests.support.stages import BATCH, WIDTH, Ties, alone, apart, errors_on_ranks, inputs, models, one_rank, tied_in
from weft.runtime import AdamA, Boundary, MasterWeights, Plan, Session, SessionError, Training, plan_of
from weft.runtime.replay.run import run_training
from weft.runtime.replay.single_rank import measure_rank, single_rank
from weft.runtime.train.accumulation import tied_parameters
from weft.solver.baselines import baseline

WORDS, BETAS, STEPS = 11, (0.8, 0.9), 3
RATE = 0.05


class Tied(nn.Module):
    """All ways for a parameter to get its gradient in parts: a table that is also a linear layer's weight, a layer used
    twice, a weight used in and beside its layer; a norm, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.twice, self.beside = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head, self.unused = nn.Linear(WIDTH, WORDS, bias=False), nn.Linear(2, 2)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.words(torch.arange(BATCH))
        y = torch.tanh(self.twice(self.norm(y))) @ self.beside.weight
        y = self.twice(torch.tanh(self.beside(y)))
        z: Tensor = x + self.head(torch.tanh(y)) @ torch.ones(WORDS, WIDTH, dtype=x.dtype)
        return z


def targets(step: int, micro_batch: int) -> Tensor:
    return inputs(step + 50, micro_batch)


def loss(y: Tensor, target: Tensor) -> Tensor:
    return ((y - target) ** 2).mean()


def training(plan: Plan, rank: int, steps: int = STEPS, ties: Ties = ()) -> Training:
    assert plan.stage_ranks is not None
    modules = models(Tied, len(plan.stage_ranks), ties)
    mine = {s: modules[s] for s, where in enumerate(plan.stage_ranks) if where == rank}
    return Training(mine, [Boundary((BATCH, WIDTH), torch.float64)] * (len(modules) - 1), inputs, targets, loss,
                    optimizer=AdamA(list(nn.ModuleList(mine.values()).parameters()), RATE, BETAS), steps=steps,
                    ties=ties)


def reference(stages: int, micro_batches: int, steps: int = STEPS,
              ties: Ties = ()) -> list[nn.Module]:
    """The rule written out, by one process: sums of gradients and of their squares, a tie's gradient whole."""
    modules = models(Tied, stages, ties)
    tied = tied_in(modules, ties)
    whole = nn.Sequential(*modules)
    parameters = list(whole.parameters())
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    for step in range(steps):
        found = []
        for m in range(micro_batches):
            value = loss(whole(inputs(step, m)), targets(step, m)) / micro_batches
            found.append(torch.autograd.grad(value, parameters, allow_unused=True))
        for i, parameter in enumerate(parameters):
            gradients = [each[i] for each in found if each[i] is not None]
            others = next((group for group in tied if any(p is parameter for p in group)), None)
            if others is not None:
                where = [j for j, p in enumerate(parameters) if any(p is other for other in others)]
                gradients = [torch.stack([each[j] for each in found for j in where]).sum(0)]
            if not gradients:
                continue
            first[i] = BETAS[0] * first[i] + (1 - BETAS[0]) * torch.stack(gradients).sum(0)
            second[i] = BETAS[1] * second[i] + (1 - BETAS[1]) * torch.stack([g ** 2 for g in gradients]).sum(0)
            mean, size = first[i] / (1 - BETAS[0] ** (step + 1)), second[i] / (1 - BETAS[1] ** (step + 1))
            parameter.data -= RATE * mean / (size.sqrt() + 1e-8)
    return modules


def plans() -> dict[str, Plan]:
    return {
        "full": plan_of(baseline("1f1b", pipeline(chain(2)), 4)),
        "split": plan_of(baseline("zb-h1", pipeline(chain(2), split=(1, 1), first_input_grad=False), 4)),
        "v": plan_of(baseline("zb-v", pipeline(v(2), split=(1, 1)), 4)),
    }


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_every_gradient_is_whole_when_it_is_folded(split: bool) -> None:
    plan = one_rank(split)
    part = training(plan, 0)
    alone(plan, part)
    assert apart(part.stages, reference(2, 4)) < 1e-12
    assert all(p.grad is None for module in part.stages.values() for p in module.parameters())


def test_with_one_micro_batch_the_executor_trains_as_adam() -> None:
    plan = one_rank(split=True, micro_batches=1)
    ours, theirs = training(plan, 0, steps=5), training(plan, 0, steps=5)
    theirs.optimizer = torch.optim.Adam(list(nn.ModuleList(theirs.stages.values()).parameters()), RATE, BETAS)
    alone(plan, ours)
    alone(plan, theirs)
    assert apart(ours.stages, [theirs.stages[s] for s in (0, 1)]) < 1e-10


@pytest.mark.parametrize("split", [False, True])
def test_parameters_of_several_stages_are_folded_once(split: bool) -> None:
    plan, ties = one_rank(split), [{0: "beside.weight", 1: "twice.weight"}]
    part = training(plan, 0, ties=ties)
    assert tied_parameters(part) == {part.stages[0].get_parameter("beside.weight"),
                                     part.stages[1].get_parameter("twice.weight")}
    alone(plan, part)
    assert apart(part.stages, reference(2, 4, ties=ties)) < 1e-12


@pytest.mark.parametrize("split", [False, True])
def test_masters_take_the_moments(split: bool) -> None:
    """The modules are in fp32, the masters in fp64: what is folded is what would have been added up."""
    plan = one_rank(split)
    part = training(plan, 0)
    modules = nn.ModuleList(part.stages.values()).float()
    part.masters = MasterWeights(modules.parameters(), dtype=torch.float64)
    part.optimizer = AdamA(part.masters.parameters(), RATE, BETAS)
    part.inputs = lambda step, m: inputs(step, m).float()
    part.boundaries = [Boundary((BATCH, WIDTH))]
    alone(plan, part)
    part.masters.close()
    assert apart(part.stages, reference(2, 4)) < 1e-4
    assert all(master.grad is None for master in part.masters.parameters())


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


LAYER = 64 * 64 * 8  # bytes


def deep(optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Training:
    modules = {s: Deep().double() for s in (0, 1)}
    return Training(modules, [Boundary((1, 64), torch.float64)], lambda s, m: torch.ones(1, 64, dtype=torch.float64),
                    lambda s, m: torch.zeros(1, 64, dtype=torch.float64), loss, steps=2,
                    optimizer=optimizer(list(nn.ModuleList(modules.values()).parameters())))


class Watched(AdamA):
    """Notes how many bytes of gradients there are whenever one is folded."""

    most = 0

    def fold(self, parameter: Tensor, gradient: Tensor, *, whole: bool = False) -> None:
        everything = [p for group in self.param_groups for p in group["params"]]
        self.most = max(self.most, gradient.nbytes + sum(p.grad.nbytes for p in everything if p.grad is not None))
        super().fold(parameter, gradient, whole=whole)


@pytest.mark.parametrize("split", [False, True])
def test_gradients_that_live_at_once_are_one_layers(split: bool) -> None:
    part = deep(Watched)
    alone(one_rank(split), part)
    assert isinstance(part.optimizer, Watched) and part.optimizer.most == LAYER


@pytest.mark.parametrize("split", [False, True])
def test_the_peak_falls_by_the_gradient(split: bool) -> None:
    plan, peaks = one_rank(split), []
    for optimizer in (torch.optim.Adam, AdamA):
        with single_rank(plan, 0, torch.device("cpu")) as session:
            peaks.append(measure_rank(plan, session, deep(optimizer), repeats=1).peak)
    assert peaks[0] - peaks[1] >= 16 * LAYER - 2 * LAYER  # but for the layers at work


def test_clipping_is_refused_with_the_reason() -> None:
    plan = one_rank(split=False)
    part = training(plan, 0)
    part.clip_norm = 1.0
    with pytest.raises(SessionError, match=r"clip_norm is 1\.0, but AdamA cannot clip: the norm is known when"):
        alone(plan, part)


@pytest.mark.parametrize(("optimizer", "said"), [
    (AdamA([nn.Parameter(torch.ones(2))]), "would train nothing, as it has none of this rank's parameters"),
    (torch.optim.LBFGS([nn.Parameter(torch.ones(2))]), "LBFGS runs the model again within its step"),
    (nn.Linear(1, 1), "the optimizer is Linear, it must be a torch.optim.Optimizer"),
])
def test_an_optimizer_that_does_not_fit_is_refused_before_the_first_step(optimizer: torch.optim.Optimizer,
                                                                         said: str) -> None:
    plan = one_rank(split=False)
    part = training(plan, 0)
    part.optimizer = optimizer
    with pytest.raises(SessionError, match=said):
        alone(plan, part)


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


def test_a_gradient_that_comes_in_parts_is_refused() -> None:
    plan = plan_of(baseline("gpipe", pipeline([0]), 2))
    module = Reentrant()
    part = Training({0: nn.Sequential(nn.Linear(WIDTH, WIDTH).double(), module)}, [], inputs, targets, loss,
                    optimizer=AdamA(module.parameters()))
    with pytest.raises(SessionError, match="came in two parts in one backward"):
        alone(plan, part)


# -- real ranks --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pipelines_and_replicas_are_one_process() -> None:
    for end in finished(2, "tests.runtime.train.test_accumulation"):
        assert max(json.loads(end.output).values()) < 1e-12, end.output


def _error(plan: Plan, session: Session, micro_batches: int, ties: Ties) -> float:
    part = training(plan, session.rank, ties=ties)
    run_training(plan, session, part)
    return apart(part.stages, reference(len(plan.stage_ranks or ()), micro_batches, ties=ties))


if __name__ == "__main__":
    print(json.dumps(errors_on_ranks(_error, plans(), lambda stages: (
        (), [{0: "beside.weight", stages - 1: "twice.weight"}]))))
