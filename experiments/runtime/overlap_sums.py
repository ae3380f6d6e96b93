"""Sums of gradients over copies of a pipeline, on emulated links: does a step take what is planned with their overlap?

    python -m experiments.runtime.overlap_sums [--steps N]

Two copies of two ranks train four stages in a V, or two in a row. Passes sleep, so that a busy machine delays no one;
parameters are real, and their gradients are summed by the trainer itself, over gloo. A sum is over no sooner than an
emulated link has carried its bytes, one after another on each rank. Planned is the schedule, stretched to what its step
takes when sums take nothing, as a pipeline's plan is, and behind the last backward of a stage its sum, on the link.
Writes ``overlap_sums.json``; exits with 1 where a step takes :data:`CLOSE` more or less than planned.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from experiments.lib.provenance import Record, Row
from experiments.lib.script import on_ranks, script
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import StageWork
from weft.runtime.ranks.session import join
from weft.runtime.ranks.stopwatch import sleep_until
from weft.runtime.replay.stepping import TOGETHER, Stepping, stages_of
from weft.runtime.train import reduction
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

RANKS, COPIES, MICRO_BATCHES, WIDTH = 2, 2, 6, 256
#: Seconds of a forward; a backward takes twice as long.
PASS = 0.05
#: Seconds that the sum of a stage takes on the link.
SUMS = (0.06, 0.15)
CLOSE = 0.03
SHAPES = {"1f1b": ((0, 1), "1f1b"), "V": ((0, 1, 1, 0), "greedy")}


class _Asleep(torch.autograd.Function):
    """Nothing, for as long as a pass takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        sleep_until(time.perf_counter() + seconds, time.perf_counter)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        sleep_until(time.perf_counter() + 2 * ctx.seconds, time.perf_counter)
        return gradient, None


class _Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Asleep.apply(x * self.weight[0], PASS)  # type: ignore[no-untyped-call]
        return found


class _Link:
    """Sums that take ``seconds`` at least, one after another."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.free = seconds, 0.0

    def all_reduce(self, tensor: Tensor, group: Any = None, async_op: bool = False, **settings: Any) -> Any:
        work = dist.all_reduce(tensor, group=group, async_op=async_op, **settings)
        if not async_op:
            return work
        self.free = max(self.free, time.perf_counter()) + self.seconds
        return _Sum(work, self.free)

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)


class _Sum:
    def __init__(self, work: Any, until: float) -> None:
        self.work, self.until = work, until

    def wait(self) -> None:
        self.work.wait()
        sleep_until(self.until, time.perf_counter)


def plan_in(shape: str) -> Plan:
    """The schedule of stages on the ranks of ``shape``."""
    places, name = SHAPES[shape]
    last = len(places) - 1
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (rank,), PASS, (1,), (), (Dependency(f"F{s - 1}"),) if s else ())
              for s, rank in enumerate(places)]
    blocks += [Block(f"B{s}", BlockKind.BACKWARD, (places[s],), 2 * PASS, (-1,), (),
                     (Dependency(f"B{s + 1}" if s < last else f"F{s}"),)) for s in reversed(range(last + 1))]
    problem = Problem("asleep", tuple(Device(f"rank {r}") for r in range(RANKS)), tuple(blocks), time_unit="s")
    return plan_of(baseline(name, problem, MICRO_BATCHES))


def planned(plan: Plan, seconds: float, stretch: float) -> float:
    """The step with sums beside blocks, which take ``stretch`` times as long."""
    whole = []
    for rank in range(RANKS):
        free = 0.0
        own = sorted(stretch * max(end for work, (_, end) in plan.times.items() if isinstance(work, StageWork)
                         and work.stage == stage) for stage in stages_of(plan, rank))
        for end in own:
            free = max(free, end) + seconds
        whole.append(free)
    return max(whole)


def on_rank(shape: str, seconds: float, steps: int) -> list[float]:
    """One rank of one copy: what each step took."""
    with join(120, replicas=COPIES) as session:
        vars(reduction)["dist"] = _Link(seconds)
        plan = plan_in(shape)
        x = torch.ones(COPIES * MICRO_BATCHES, 2, WIDTH)
        stepping = Stepping(plan, session, Training(
            {stage: _Stage() for stage in stages_of(plan, session.rank)},
            [Boundary((2, WIDTH))] * (len(plan.stage_ranks or ()) - 1), lambda step, m: x[m],
            targets=lambda step, m: x[m], loss=nn.functional.mse_loss))
        found = []
        for _ in range(len(TOGETHER) + steps):
            session.barrier("before a step")
            moment = time.perf_counter()
            stepping.step()
            found.append(time.perf_counter() - moment)
        stepping.close()
    return found[len(TOGETHER):]


def measured(steps: int) -> Iterator[Row]:
    """All cases, each beside what is planned."""
    for shape in SHAPES:
        plan, stretch = plan_in(shape), 1.0
        for seconds in (0.0, *SUMS):
            took = statistics.median(on_ranks(on_rank, RANKS * COPIES, shape, seconds, steps, timeout=120)[0])
            if not seconds:
                stretch = took / plan.makespan
                continue
            beside = planned(plan, seconds, stretch)
            yield {"shape": shape, "sum": seconds, "planned": beside, "measured": took, "stretch": stretch,
                   "ratio": took / beside}


@script("overlap_sums.json", steps=7)
def main(options: Namespace, record: Record) -> bool:
    rows = record.rows(measured(options.steps), lambda rows: {"pass": PASS}, ranks=RANKS, copies=COPIES,
                       micro_batches=MICRO_BATCHES)
    return any(abs(row["ratio"] - 1) > CLOSE for row in rows)
