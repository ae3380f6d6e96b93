"""Training by a schedule that offloads beside the computation: what it plans, proves, computes and holds.

Run as a program (``python -m tests.end_to_end.test_offload_training FOLDER``), this file is one rank of what its tests
launch.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.lib.small_gpt import Config, batch, cut, layers, loss
from tests.support import PATIENCE, chain, finished, pipeline
from tests.support.steady_costs import steady
from weft.runtime import Boundary, StageGraph, Training, load_plan, measure_stages, plan_of, save_plan
from weft.runtime.measure.measure import memory_of
from weft.runtime.measure.stage_costs import StageCosts, measured_problem, static_bytes
from weft.runtime.plan.check import check_program
from weft.runtime.plan.program import Program, ProgramError, Recv, StageWork
from weft.runtime.ranks.session import join
from weft.runtime.replay.run import run_training
from weft.runtime.train.agreement import Allowed
from weft.runtime.train.offload import CopyEngine
from weft.runtime.train.stage import Offloading, StageRunner
from weft.solver import Problem, Schedule, solve
from weft.solver.offload import Offload, with_offloads

CPU = torch.device("cpu")
CONFIG = Config(width=64, blocks=6, length=48, sequences=2)
MICRO_BATCHES = 8


def gpt(dtype: torch.dtype, only: int | None = None) -> Training:
    """A small GPT in two stages; only one of them where a rank wants its own."""
    made, ranges = layers(CONFIG, dtype), cut(CONFIG, 2)
    modules = {s: nn.Sequential(*(made[i] for i in where)) for s, where in enumerate(ranges) if only in (None, s)}
    return Training(modules, [Boundary((CONFIG.sequences, CONFIG.length, CONFIG.width), dtype)],
                    lambda step, m: batch(CONFIG, step, m)[0], lambda step, m: batch(CONFIG, step, m)[1], loss, steps=2)


def moving(stage: int) -> int:
    """Bytes of one micro-batch that a stage moves to the host."""
    training, engine = gpt(torch.float32), CopyEngine(CPU)
    function = training.stages[0] if stage == 0 else lambda x: loss(training.stages[1](x), batch(CONFIG, 0, 0)[1])
    runner = StageRunner(training.stages[stage], function=function, offloading=Offloading(engine))
    runner.forward(0, batch(CONFIG, 0, 0)[0] if stage == 0 else torch.randn(CONFIG.sequences, CONFIG.length,
                                                                             CONFIG.width))
    engine.close()
    return runner.moving(0)


def planned(costs: list[StageCosts], offload: bool) -> Problem:
    """Two stages a long way apart, so that the first must run ahead to keep busy, each with memory for two and a half
    times what one micro-batch leaves."""
    kept = [cost.passes["full"]["F"].memory.change for cost in costs]
    times = [sum(cost.passes["full"][letter].time.seconds for letter in "FB") for cost in costs]
    problem = measured_problem(costs)
    apart = {("F1", "F0"), ("B0", "B1")}
    blocks = tuple(replace(block, after=tuple(
        replace(item, lag=1.4 * max(times)) if (block.name, item.block) in apart else item for item in block.after))
        for block in problem.blocks)
    workspace = max(block.workspace[0] for block in blocks)
    devices = tuple(replace(device, memory=int(2.5 * kept[s]) + workspace) for s, device in enumerate(problem.devices))
    problem = replace(problem, blocks=blocks, devices=devices)
    return with_offloads(problem, [Offload("F0", "B0", moving(0), 0.3 * min(times))], 1e-6) if offload else problem


@pytest.mark.slow
def test_an_offloading_schedule_trains_as_one_process_does_in_the_memory_that_it_plans(tmp_path: Path) -> None:
    costs = steady(measure_stages(gpt(torch.float32), device=CPU, repeats=1))
    plain, schedule = (solve(planned(costs, offload), MICRO_BATCHES, time_limit=3000, effort=4.0)
                       for offload in (False, True))
    assert schedule.makespan < 0.75 * plain.makespan  # more micro-batches are under way in the same memory
    assert most_in_flight(schedule) > most_in_flight(plain)
    assert StageGraph.of(schedule.problem).copies_beside(0)
    save_plan(plan_of(schedule), tmp_path / "plan.json")
    ended = finished(2, __name__, str(tmp_path))
    for rank, end in enumerate(ended):
        found = json.loads(end.output.splitlines()[-1])
        assert found["gradient_error"] < 1e-10 < 1e-3 < found["gradient"] and found["loss_error"] < 1e-10
        held = static_bytes(costs, rank, optimizer_copies=0, micro_batches=MICRO_BATCHES) - costs[rank].parameter_bytes
        held += early_messages(schedule, rank) * costs[0].output_bytes
        assert schedule.peak_memory[rank] + held == pytest.approx(found["peak"], rel=0.05)


def most_in_flight(schedule: Schedule) -> int:
    """Micro-batches between the first stage's forward and its backward at once."""
    problem = schedule.problem
    level = most = 0
    for operation in schedule.device_orders[0]:
        name = problem.blocks[operation.block].name
        level += (name == "F0") - (name == "B0")
        most = max(most, level)
    return most


def early_messages(schedule: Schedule, rank: int) -> int:
    """The most messages that have come and that no block reads yet: their buffers are not the blocks' memory."""
    level = most = 0
    for instruction in plan_of(schedule).program.ranks[rank]:
        level += isinstance(instruction, Recv)
        level -= isinstance(instruction, StageWork) and instruction.letter == ("B" if rank == 0 else "F")
        most = max(most, level)
    return most


def rank_of_the_plan(folder: Path) -> None:
    """Trains by the plan, in fp64 against one process, and in fp32 to see how much memory it takes."""
    rank = int(os.environ["RANK"])
    plan = load_plan(folder / "plan.json")
    batch(CONFIG, 0, 0)  # the text is read and kept
    with join(PATIENCE, transport="gloo:sockets") as session:  # through shared memory what is sent goes at once
        training = gpt(torch.float64, rank)
        # The plan is for weights half as wide.
        result = run_training(plan, session, training, allowed=Allowed(model=True))
        found = {"gradient_error": 0.0, "loss_error": 0.0}
        whole = gpt(torch.float64)
        total = torch.zeros(())
        for m in range(MICRO_BATCHES):
            tokens, wanted = batch(CONFIG, 1, m)
            value = loss(whole.stages[1](whole.stages[0](tokens)), wanted) / MICRO_BATCHES
            torch.autograd.backward(value)
            total = total + value.detach()
        found["gradient_error"] = max(
            float((mine.grad - other.grad).abs().max())
            for mine, other in zip(training.stages[rank].parameters(), whole.stages[rank].parameters(), strict=True)
            if mine.grad is not None and other.grad is not None)
        found["gradient"] = max(float(p.grad.abs().max()) for p in training.stages[rank].parameters()
                                if p.grad is not None)
        if result is not None:
            found["loss_error"] = abs(result.losses[1] - float(total))
        del whole, training, total
        fresh = gpt(torch.float32, rank)
        found["peak"] = memory_of(lambda: run_training(plan, session, fresh), CPU)[1].peak
    print(json.dumps(found))


# -- the proof ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second", "message"), [
    ("0O0", "0L0", "0L0 needs the result of 0O0"), ("0L0", "0B0", "0B0 needs the result of 0L0"),
    ("0F0", "0O0", "rank 0 has not computed 0F0 by then"),
])
def test_a_pass_out_of_its_place_is_refused_before_the_launch(first: str, second: str, message: str) -> None:
    problem = with_offloads(pipeline(chain(2), activation=4, memory=8), [Offload("f0", "b0", 3, 0.5)], 0.01)
    plan = plan_of(solve(problem, 2, effort=1.0))
    rows = [list(row) for row in plan.program.to_text()]
    assert {"0O0", "0L1"} <= set(rows[0])
    rows[0].remove(first)
    rows[0].insert(rows[0].index(second) + 1, first)
    with pytest.raises(ProgramError, match=message):
        check_program(Program.from_text(rows), problem, 2)


if __name__ == "__main__":
    rank_of_the_plan(Path(sys.argv[1]))
