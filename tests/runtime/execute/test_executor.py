"""The executor on real processes: gradients, emulated time, and what happens when a rank dies or hangs.

Run as a program (``python -m tests.runtime.execute.test_executor CASE``), this file is one rank of what its tests
launch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support import PATIENCE, chain, finished, launch_forked, pipeline, v
from tests.support.stages import BATCH, WIDTH, Mix, gradients, inputs, largest_difference, models
from weft.runtime import Boundary, Plan, ReplayOptions, Training, plan_of, save_plan
from weft.runtime.ranks.launch import Ended
from weft.runtime.ranks.session import Session, join
from weft.runtime.replay.replay import replay
from weft.runtime.replay.run import run_emulated, run_training
from weft.solver import Block, BlockKind, Dependency, Device, Link, Problem, Schedule, baseline, time_orders

pytestmark = pytest.mark.slow


def plan_file(folder: Path, ranks: int, name: str = "1f1b", micro_batches: int = 4) -> Path:
    save_plan(plan_of(baseline(name, pipeline(chain(ranks)), micro_batches)), folder / "plan.json")
    return folder / "plan.json"


# -- real ranks --------------------------------------------------------------------------------------------------------


def launch(case: str, ranks: int, folder: Path, **environment: str) -> list[Ended]:
    return launch_forked(ranks, [sys.executable, "-m", __name__, case, str(folder)],
                         environment=environment)


def loss(y: Tensor, target: Tensor) -> Tensor:
    return ((y - target) ** 2).mean()


def training(plan: Plan, rank: int, wrap: Callable[[int, nn.Module], nn.Module] = lambda s, module: module) -> Training:
    assert plan.stage_ranks is not None
    modules = models(Mix, len(plan.stage_ranks))
    mine = {s: wrap(s, modules[s]) for s, where in enumerate(plan.stage_ranks) if where == rank}
    boundary = Boundary((BATCH, WIDTH), torch.float64)
    return Training(mine, [boundary] * (len(modules) - 1), inputs, targets=lambda s, m: inputs(s + 50, m), loss=loss,
                    optimizer=torch.optim.SGD([p for module in mine.values() for p in module.parameters()], lr=0.1),
                    steps=2)


def reference(stages: int, micro_batches: int, steps: int = 2) -> tuple[list[nn.Module], list[float]]:
    modules, losses = models(Mix, stages), []
    whole = nn.Sequential(*modules)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for step in range(steps):
        whole.zero_grad()
        x, target = (torch.cat([inputs(s, m) for m in range(micro_batches)]) for s in (step, step + 50))
        value = loss(whole(x), target)
        torch.autograd.backward(value)
        optimizer.step()
        losses.append(float(value.detach()))
    return modules, losses


def training_plans() -> dict[str, Plan]:
    """One stage a rank and several, full and split backwards, a first stage without input gradient; the last plan runs
    its backwards, and even its last stage's forwards, out of order."""
    schedules = {
        "gpipe": baseline("gpipe", pipeline(chain(2)), 4),
        "1f1b": baseline("1f1b", pipeline(chain(2)), 4),
        "zb-h1": baseline("zb-h1", pipeline(chain(2), split=(1, 1), first_input_grad=False), 4),
        "zb-v": baseline("zb-v", pipeline(v(2), split=(1, 1)), 4),
        "interleaved": baseline("interleaved", pipeline([0, 1, 0, 1]), 4),
        "unordered": baseline("gpipe", pipeline([1, 0, 0], split=(1, 1)), 4),
    }
    plain = schedules["unordered"]
    orders = [[(o.block, {0: 2, 1: 0, 2: 3, 3: 1}[o.micro_batch]) for o in row] for row in plain.device_orders]
    schedules["unordered"] = Schedule(plain.problem, 4, time_orders(plain.problem, 4, orders), 0.0)
    return {name: plan_of(schedule) for name, schedule in schedules.items()}


def test_pipelined_training_is_single_process_training() -> None:
    ended = finished(2, __name__, "train")
    found = [json.loads(end.output) for end in ended]
    assert found[0].keys() == found[1].keys() == training_plans().keys()
    for name in training_plans():
        for rank in (0, 1):
            assert found[rank][name]["gradients"] < 1e-13, name
            assert found[rank][name]["parameters"] < 1e-13, name
        assert found[0][name]["losses"] < 1e-13, name
        assert found[0][name]["timeline"] == sorted(
            [block.name, m] for block in training_plans()[name].problem.blocks for m in range(4))


def infer(session: Session) -> None:
    """Forwards only: what comes out is what the whole model gives."""
    plan = plan_of(baseline("gpipe", pipeline(v(2), backward=None), 3))
    part = training(plan, session.rank)
    part.optimizer = None
    outputs: dict[tuple[int, int], Tensor] = {}
    part.collect = lambda step, m, y: outputs.update({(step, m): y})
    assert run_training(plan, session, part) is None or session.rank == 0
    with torch.no_grad():
        expected = {(step, m): nn.Sequential(*models(Mix, 4))(inputs(step, m)) for step in range(2) for m in range(3)}
    if session.rank == 0:  # both the first and the last stage of a V
        assert outputs.keys() == expected.keys()
        assert all(torch.equal(outputs[key], expected[key]) for key in expected)


def train() -> None:
    found = {}
    with join(PATIENCE) as session:
        infer(session)
        for name, plan in training_plans().items():
            assert plan.stage_ranks is not None
            part = training(plan, session.rank)
            result = run_training(plan, session, part)
            modules, losses = reference(len(plan.stage_ranks), plan.micro_batches)
            found[name] = {
                "gradients": max(largest_difference(gradients(part.stages[s]), gradients(modules[s]))
                                 for s in part.stages),
                "parameters": max(largest_difference(dict(part.stages[s].named_parameters()),
                                                     dict(modules[s].named_parameters())) for s in part.stages),
            }
            if result is not None:
                found[name]["losses"] = max(abs(a - b) for a, b in zip(result.losses, losses, strict=True))
                found[name]["timeline"] = sorted([o.block, o.micro_batch]  # type: ignore[assignment]
                                                 for o in result.timeline.operations)
    print(json.dumps(found))


def emulated_problem() -> Problem:
    """Blocks on two devices, a link that is busy, a lag, a wait for the previous micro-batch."""
    return Problem("emulated", (Device("0"), Device("1"), Device("2")), (
        Block("both", BlockKind.OTHER, (0, 1), 10, after=(Dependency("end", 2, distance=1),)),
        Block("a", BlockKind.OTHER, (0,), 4, after=(Dependency("both"),)),
        Block("b", BlockKind.OTHER, (0,), 3, after=(Dependency("both"),)),
        Block("c", BlockKind.OTHER, (2,), 5, after=(Dependency("a", 20, "wire"),)),
        Block("end", BlockKind.OTHER, (2, 1), 5, after=(Dependency("b", 20, "wire"), Dependency("c"))),
    ), (Link("wire", 0, 2),), time_unit="ms")


def emulated_plan() -> Plan:
    problem, n = emulated_problem(), 3
    orders = [[(b, m) for m in range(n) for b in row] for row in ((0, 1, 2), (0, 4), (3, 4))]
    return plan_of(Schedule(problem, n, time_orders(problem, n, orders), 0.0))


def test_emulated_blocks_keep_every_rule_of_the_schedule(tmp_path: Path) -> None:
    ended = launch("emulate", 3, tmp_path)
    assert [end.code for end in ended] == [0, 0, 0], ended
    rows = json.loads(ended[0].output)
    problem, early = emulated_problem(), 1e-3  # a sleep may be cut a little short, never by a millisecond
    when = {(block, m, rank): (start, end) for block, m, rank, start, end in rows}
    assert len(when) == len(rows) == 3 * sum(len(block.devices) for block in problem.blocks)
    for (name, m, rank), (start, end) in when.items():
        block = problem.blocks[problem.index[name]]
        assert rank in block.devices
        assert end - start >= block.duration * 1e-3 - early
        for dependency in block.after:
            if m >= dependency.distance:
                held = problem.blocks[problem.index[dependency.block]].devices
                producer = when[dependency.block, m - dependency.distance, rank if rank in held else held[0]]
                assert start >= producer[1] + dependency.lag * 1e-3 - early, (name, m)
    for m in range(3):
        assert when["end", m, 2][0] >= when["a", m, 0][1] + 2 * 20e-3 - early  # b's transfer comes after a's
        if m:
            assert when["both", m, 1][0] >= when["b", m - 1, 0][1] - early  # rank 1 waits for rank 0 to come to it


def emulate() -> None:
    with join(PATIENCE) as session:
        result = run_emulated(emulated_plan(), session, 1e-3)
    if result is not None:
        print(json.dumps(result.timeline.operations))


def faulty(plan: Plan, rank: int) -> Training:
    """Three ranks; stage 1 does what ``WEFT_FAULT`` says when micro-batch 2 comes to it."""

    class Faulty(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, x: Tensor) -> Tensor:
            if self.calls == 2:
                fault()
            self.calls += 1
            y: Tensor = self.inner(x)
            return y

    def fault() -> None:
        if os.environ["WEFT_FAULT"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif os.environ["WEFT_FAULT"] == "hang":
            time.sleep(3600)
        raise ZeroDivisionError("no such luck")

    return training(plan, rank, lambda s, module: Faulty(module) if s == 1 else module)


@pytest.mark.parametrize(("fault", "codes", "sentences"), [
    ("die", [1, -signal.SIGKILL, 1], [
        r"rank 0: stopped while (waiting for|starting) (RECV 1B\d<1|SEND 0F\d>1).* \(micro-batch \d\).*lost rank 1"
        r"|rank 0: lost rank 1 .* while (waiting for|starting) (RECV 1B\d<1|SEND 0F\d>1).* \(micro-batch \d\)",
        "",
        r"rank 2: .*lost rank 1 .* while (waiting for|starting) (RECV 1F2<1|SEND 2B\d>1).* \(micro-batch \d\)"
        r"|rank 2: stopped while (waiting for|starting) (RECV 1F2<1|SEND 2B\d>1).* \(micro-batch \d\).*lost rank 1"]),
    ("hang", [1, 1, 1], [
        r"rank 0: (gave up after|stopped while) .*rank 1 .*running 1F2 \(micro-batch 2\)",
        r"rank 1: (gave up after|stopped while) .*running 1F2 \(micro-batch 2\)",
        r"rank 2: (gave up after|stopped while) .*waiting for RECV 1F2<1, for 2F2 \(micro-batch 2\)"]),
    ("raise", [1, 1, 1], [
        r"rank 0: .*ZeroDivisionError while running 1F2 \(micro-batch 2\): no such luck",
        r"rank 1: ZeroDivisionError while running 1F2 \(micro-batch 2\): no such luck",
        r"rank 2: .*ZeroDivisionError while running 1F2 \(micro-batch 2\): no such luck"]),
])
def test_when_a_rank_fails_every_rank_stops_and_says_where(
        tmp_path: Path, fault: str, codes: list[int], sentences: list[str]) -> None:
    plan_file(tmp_path, 3)
    ended = launch("fault", 3, tmp_path, WEFT_FAULT=fault)
    assert not any(end.late for end in ended), ended
    assert [end.code for end in ended] == codes, ended
    for end, sentence in zip(ended, sentences, strict=True):
        lines = [line for line in end.errors.splitlines() if line.startswith("weft: ")]
        assert len(lines) == (1 if sentence else 0), end.errors
        if sentence:
            assert re.search(sentence, lines[0]), lines[0]


def replay_faulty() -> None:
    replay(Path(sys.argv[2]) / "plan.json",
           ReplayOptions(stages="tests.runtime.execute.test_executor:faulty", timeout=4))


if __name__ == "__main__":
    {"train": train, "emulate": emulate, "fault": replay_faulty}[sys.argv[1]]()
