"""Losses that are a sum and a count: a batch is the mean over what it counts, as in one process, however unequally its
micro-batches have of it.

Run as a program (``python -m tests.runtime.replay.test_run``), this file is one rank of what its tests
launch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.support import chain, finished, pipeline, v
from tests.support.stages import WIDTH, Ties, alone, apart, errors_on_ranks, inputs, models, one_rank, tied_in
from weft.runtime import AdamA, Boundary, Plan, Ports, Session, SessionError, Training, counted, plan_of
from weft.runtime.ranks.health import RunError
from weft.runtime.replay.run import run_training
from weft.runtime.replay.single_rank import single_rank
from weft.runtime.replay.stepping import Stepping
from weft.solver.baselines import baseline

TOKENS, STEPS, RATE, CLIP = 5, 3, 0.3, 0.2
IGNORED = -100


def targets(step: int, micro_batch: int) -> Tensor:
    """Labels of all tokens of micro-batch 0, of fewer of each further one, of none of some."""
    chance = torch.Generator().manual_seed(7 + 100 * step + micro_batch)
    found = torch.randint(WIDTH, (TOKENS,), generator=chance)
    found[TOKENS - (2 * micro_batch + step) % (TOKENS + 1):] = IGNORED
    return found


def labelled(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return cross_entropy(output, target, ignore_index=IGNORED, reduction="sum"), (target != IGNORED).sum()


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(torch.tanh(self.norm(self.one(x))))
        return y


def training(plan: Plan, rank: int, ties: Ties = (), **options: Any) -> Training:
    assert plan.stage_ranks is not None
    modules = models(Stage, len(plan.stage_ranks), ties)
    mine = {s: modules[s] for s, where in enumerate(plan.stage_ranks) if where == rank}
    parameters = [p for module in mine.values() for p in module.parameters()]
    given: dict[str, Any] = {"loss": labelled, "optimizer": torch.optim.SGD(parameters, RATE), **options}
    return Training(mine, [Boundary((TOKENS, WIDTH), torch.float64)] * (len(modules) - 1), partial(inputs, rows=TOKENS),
                    targets,
                    steps=STEPS, clip_norm=CLIP, ties=ties, **given)


def reference(stages: int, micro_batches: int, ties: Ties = (),
              together: int = 1) -> tuple[list[nn.Module], list[float], list[float]]:
    """One process on whole batches: modules, losses and norms. ``together``: batches that are one."""
    modules = models(Stage, stages, ties)
    groups = tied_in(modules, ties)
    whole, losses, norms = nn.Sequential(*modules), [], []
    for first in range(0, STEPS * together, together):
        steps = range(first, first + together)
        x = torch.cat([inputs(step, m, TOKENS) for step in steps for m in range(micro_batches)])
        y = torch.cat([targets(step, m) for step in steps for m in range(micro_batches)])
        whole.zero_grad()
        loss = cross_entropy(whole(x), y, ignore_index=IGNORED)
        loss.backward()  # type: ignore[no-untyped-call]
        counted_once = list(whole.parameters())
        for group in groups:
            total = torch.stack([p.grad for p in group if p.grad is not None]).sum(0)
            for parameter in group:
                parameter.grad = total.clone()
            counted_once = [p for p in counted_once if not any(p is other for other in group[1:])]
        norm = float(nn.utils.get_total_norm([p.grad for p in counted_once if p.grad is not None]))
        for parameter in whole.parameters():
            assert parameter.grad is not None
            parameter.data -= RATE * parameter.grad * min(1.0, CLIP / (norm + 1e-6))
        losses.append(float(loss.detach()))
        norms.append(norm)
    return modules, losses, norms


def largest(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


TIES: Ties = [{0: "one.weight", 1: "two.weight"}]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("ties", [(), TIES])
def test_a_batch_is_the_mean_over_its_labelled_tokens(split: bool, ties: Ties) -> None:
    plan = one_rank(split)
    part = training(plan, 0, ties)
    found = alone(plan, part)
    modules, losses, norms = reference(2, 4, ties)
    assert found is not None and largest(found.losses, losses) < 1e-12 and largest(found.norms, norms) < 1e-12
    assert apart(part.stages, modules) < 1e-12
    means = training(plan, 0, ties, loss=lambda output, target: sum(labelled(output, target)[:1]) / TOKENS)
    other = alone(plan, means)
    assert other is not None and largest(other.losses, losses) > 0.1  # means of unequal micro-batches are another thing


class Losing(nn.Module):
    """The last stage of a graph, with the loss in it."""

    def __init__(self, stage: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.stage, self.loss = stage, loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.stage(x), target)


def graph(plan: Plan, **options: Any) -> Training:
    part = training(plan, 0)
    part.stages = {0: part.stages[0], 1: Losing(part.stages[1], lambda y, target: counted(*labelled(y, target)))}
    part.ports = {0: Ports(("x",), ("y",)), 1: Ports(("y", "target"), ("loss",))}
    part.boundaries = {}
    part.inputs = lambda step, m: {"x": inputs(step, m, TOKENS), "target": targets(step, m)}
    for name, value in options.items():
        setattr(part, name, value)
    return part


def test_a_stage_of_a_graph_may_give_a_sum_and_a_count() -> None:
    plan = one_rank(split=False)
    found = alone(plan, graph(plan))
    assert found is not None and largest(found.losses, reference(2, 4)[1]) < 1e-12


def test_batches_that_are_added_up_are_one() -> None:
    plan, together = one_rank(split=True), 2
    part = training(plan, 0)
    modules, losses, norms = reference(2, 4, together=together)
    with single_rank(plan, 0, torch.device("cpu")) as session:
        stepping, found = Stepping(plan, session, part), []
        for _ in range(STEPS):
            stepping.accumulate(together)
            for _ in range(together):
                stepping.step()
            found.append(stepping.norm)
        stepping.close()
    assert largest([norm for norm in found if norm is not None], norms) < 1e-12
    assert apart(part.stages, modules) < 1e-12 and len(losses) == STEPS


@pytest.mark.parametrize(("options", "error", "said"), [
    ({"loss": lambda y, t: (labelled(y, t)[0], 0)}, RunError, "batch 0 counts 0 in all its micro-batches"),
    ({"loss": lambda y, t: (labelled(y, t)[0], float("nan"))}, RunError, "the loss of micro-batch 0 in batch 0 is nan"),
    ({"loss": lambda y, t: (y, 3)}, SessionError, r"its sum is of shape \(5, 6\)"),
    ({"loss": lambda y, t: (y.sum(), "3")}, SessionError, "its count is str: give one number"),
    ({"loss": lambda y, t: (y.sum(), 1, 2)}, SessionError, "the loss is a tuple of 3"),
    ({"loss": lambda y, t: y[:2, 0]}, SessionError, r"in the shape \(2,\), it must be one number"),
])
def test_what_is_no_sum_and_count_is_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    plan = one_rank(split=False)
    with pytest.raises(error, match=said):
        alone(plan, training(plan, 0, **options))


def test_what_needs_means_refuses_sums() -> None:
    plan = one_rank(split=False)
    part = training(plan, 0)
    part.optimizer, part.clip_norm = AdamA([p for module in part.stages.values() for p in module.parameters()]), None
    with pytest.raises(SessionError, match="AdamA takes each micro-batch's gradients before the count of the batch"):
        alone(plan, part)
    calls = iter([True] * 4 + [False] * 4)
    part = training(plan, 0, loss=lambda y, t: labelled(y, t) if next(calls) else y.mean())
    with pytest.raises(SessionError, match="the loss of batch 1 is one number, but before it was a sum and a count"):
        alone(plan, part)


# -- real ranks --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pipelines_and_replicas_are_one_process() -> None:
    for end in finished(2, __name__):
        assert max(json.loads(end.output).values()) < 1e-12, end.output


def _error(plan: Plan, session: Session, micro_batches: int, ties: Ties) -> float:
    part = training(plan, session.rank, ties)
    found = run_training(plan, session, part)
    modules, losses, norms = reference(len(plan.stage_ranks or ()), micro_batches, ties)
    worst = apart(part.stages, modules)
    return worst if found is None else max(worst, largest(found.losses, losses), largest(found.norms, norms))


if __name__ == "__main__":
    plans = {"full": plan_of(baseline("1f1b", pipeline(chain(2)), 4)),
             "v": plan_of(baseline("zb-v", pipeline(v(2), split=(1, 1)), 4))}
    print(json.dumps(errors_on_ranks(_error, plans, lambda _: ((), TIES))))
