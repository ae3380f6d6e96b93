"""Measured costs: what memory a pass is said to take is what it takes, and a plan made of it holds on real ranks.

Run as a program (``python -m tests.runtime.measure.test_measure_stages FOLDER``), this file is one rank of what its
tests launch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments.lib.small_gpt import Config, batch, cut, layers, loss
from tests.support.ranks import PATIENCE, finished
from tests.support.steady_costs import steady
from weft.runtime import Boundary, Training, load_plan, plan_of, save_plan
from weft.runtime.measure import measure_stages as measuring
from weft.runtime.measure.measure import memory_of
from weft.runtime.measure.measure_stages import measure_stages
from weft.runtime.measure.stage_costs import (
    MODES,
    MeasuredStages,
    MeasureError,
    StageCosts,
    load_stage_costs,
    measured_problem,
    save_stage_costs,
    stage_costs_from_json,
    stage_costs_to_json,
    static_bytes,
)
from weft.runtime.ranks.session import join
from weft.runtime.replay.run import run_training
from weft.runtime.train.stage import StageRunner
from weft.solver import BlockKind, Problem, Schedule, baseline, solve
from weft.solver.io.entries import FormatError

CPU = torch.device("cpu")
CONFIG = Config(width=64, blocks=6, length=48, sequences=2)
MICRO_BATCHES = 8


def gpt(stages: int, only: int | None = None) -> Training:
    """The small GPT cut into stages; only one of them where a rank wants its own."""
    made, ranges = layers(CONFIG, torch.float32), cut(CONFIG, stages)
    modules = {s: nn.Sequential(*(made[i] for i in where)) for s, where in enumerate(ranges) if only in (None, s)}
    boundary = Boundary((CONFIG.sequences, CONFIG.length, CONFIG.width))
    return Training(modules, [boundary] * (stages - 1), lambda step, m: batch(CONFIG, step, m)[0],
                    lambda step, m: batch(CONFIG, step, m)[1], loss, steps=2)


def test_stages_may_be_measured_from_any_stage_on_and_after_others_that_a_rank_holds() -> None:
    order: list[int] = []

    class Asked(dict[int, nn.Module]):
        def __getitem__(self, stage: int) -> nn.Module:
            order.append(stage)
            return super().__getitem__(stage)

    plain = gpt(4)
    plain.stages = Asked(plain.stages)
    found = measure_stages(plain, device=CPU, repeats=1, begin=2, held=2**20)
    assert order == [0, 1, 2, 3, 0, 1] and [cost.stage for cost in found] == [0, 1, 2, 3]
    assert found[1].same_as == 2 and found[2].same_as is None
    assert found[1].passes == found[2].passes


def test_passes_give_back_what_they_take() -> None:
    for cost in measure_stages(gpt(4), device=CPU, repeats=1):
        for passes in cost.passes.values():
            assert sum(run.memory.change for run in passes.values()) == 0
            assert all(run.memory.peak >= max(0, run.memory.change) and run.time.seconds > 0
                       for run in passes.values())


def test_what_stays_after_an_input_gradient_is_what_the_linear_layers_need() -> None:
    block = layers(CONFIG, torch.float32)[1]
    sizes = [x + y for x, y in ((1, 3), (1, 1), (1, 4), (4, 1))]  # in widths: input and output's gradient
    runner = StageRunner(block, split=True)
    rows = (CONFIG.sequences, CONFIG.length, CONFIG.width)

    def to_the_input_gradient() -> None:
        runner.forward(0, torch.randn(rows))
        runner.input_grad(0, torch.randn(rows))

    to_the_input_gradient()
    runner.weight_grad(0)  # gradients are made
    _, kept = memory_of(to_the_input_gradient, CPU)
    assert kept.change == sum(sizes) * 4 * CONFIG.sequences * CONFIG.length * CONFIG.width
    assert memory_of(lambda: runner.weight_grad(0), CPU)[1].change == -kept.change


def test_stages_alike_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = measure_stages(gpt(4), device=CPU, repeats=1)
    assert [cost.same_as for cost in costs] == [None, None, 1, None]
    assert costs[2].passes is costs[1].passes

    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    training = gpt(4)
    other = dict(training.stages)
    other[2] = nn.Sequential(other[2], Scaled(2.0))
    other[1] = nn.Sequential(other[1], Scaled(3.0))
    training.stages = other
    assert [cost.same_as for cost in measure_stages(training, device=CPU, repeats=1)] == [None] * 4


def test_a_stage_that_would_not_fit_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "available_bytes", lambda device: 2_000_000)
    costs = measure_stages(gpt(2), device=CPU, repeats=1)
    assert all(cost.skipped is not None and not cost.passes for cost in costs)
    with pytest.raises(MeasureError, match=r"stage 0 was not measured: it needs about \d+ bytes .* 2000000 are free"):
        measured_problem(costs)


def test_a_training_that_is_no_chain_is_refused() -> None:
    with pytest.raises(MeasureError, match=r"must hold all stages 0 to n-1, it holds \[1\]"):
        measure_stages(gpt(2, only=1), device=CPU)
    fewer = gpt(3)
    assert not isinstance(fewer.boundaries, Mapping)
    fewer.boundaries = fewer.boundaries[:1]
    with pytest.raises(MeasureError, match="it holds 3 stages and 1 boundaries"):
        measure_stages(fewer, device=CPU)


def test_a_device_keeps_what_is_not_for_activations() -> None:
    costs = measure_stages(gpt(2), device=CPU, repeats=1)
    held = [static_bytes(costs, s) for s in (0, 1)]
    assert held[1] == 4 * costs[1].parameter_bytes + 8 * costs[0].output_bytes
    assert [device.memory for device in measured_problem(costs, memory=10**8).devices] == [10**8 - h for h in held]
    with pytest.raises(MeasureError, match=rf"stage \d needs \d+ bytes for weights.* but a device has {min(held)}"):
        measured_problem(costs, memory=min(held))


def test_a_file_of_costs_goes_round_and_says_where_figures_come_from(tmp_path: Path) -> None:
    costs = [*measure_stages(gpt(4), device=CPU, repeats=1), StageCosts(4, 8, 0, 4, skipped="needs too much")]
    measured = MeasuredStages("CPU", "2.13", tuple(costs))
    save_stage_costs(measured, tmp_path / "costs.json")
    assert load_stage_costs(tmp_path / "costs.json") == measured
    value = stage_costs_to_json(measured)
    assert [stage["origin"] for stage in value["stages"]] == [
        "measured", "measured", "as stage 1", "measured", "skipped: needs too much"]
    value["stages"][0]["origin"] = "guessed"
    with pytest.raises(FormatError, match=r"c\.json: stages\[0\]: origin is 'guessed', it must be 'measured', 'as st"):
        stage_costs_from_json(value, "c.json")
    value["stages"][0]["origin"] = "measured"
    del value["stages"][0]["passes"]["split"]["W"]
    with pytest.raises(FormatError, match=r"stages\[0\]: passes: split: the field 'W' is missing"):
        stage_costs_from_json(value, "c.json")


# -- planned and measured ----------------------------------------------------------------------------------------------


#: By name: which orders run, with a full and with a split backward. The first two are full at their very start, when a
#: first batch has no gradients yet; what counts is the second.
ORDERS: dict[str, Callable[[Problem], Schedule]] = {
    "all forwards first": lambda problem: baseline("gpipe", problem, MICRO_BATCHES),
    "one forward, one backward": lambda problem: baseline(
        "1f1b" if problem.blocks[-1].kind is BlockKind.BACKWARD else "zb-h1", problem, MICRO_BATCHES),
    "searched": lambda problem: solve(problem, MICRO_BATCHES, effort=0.5),
}


@pytest.mark.slow
def test_the_planned_peak_of_each_rank_is_the_measured_one(tmp_path: Path) -> None:
    costs = steady(measure_stages(gpt(2), device=CPU, repeats=1))
    plans = []
    for backward in MODES:
        # Memory for three micro-batches of the eight.
        cap = max(static_bytes(costs, s) + 3.3 * costs[s].passes[backward]["F"].memory.change for s in (0, 1))
        problem = measured_problem(costs, backward=backward, memory=int(cap))
        plans += [(backward, name, order(problem)) for name, order in ORDERS.items()]
    for i, (_, _, schedule) in enumerate(plans):
        save_plan(plan_of(schedule), tmp_path / f"{i}.plan.json")
    ended = finished(2, __name__, str(tmp_path))
    for rank, end in enumerate(ended):
        weights = costs[rank].parameter_bytes  # there before what is measured begins
        held = static_bytes(costs, rank, optimizer_copies=0, micro_batches=MICRO_BATCHES) - weights
        peaks = json.loads(end.output.splitlines()[-1])
        for (backward, name, schedule), measured in zip(plans, peaks, strict=True):
            assert schedule.peak_memory[rank] + held == pytest.approx(measured, rel=0.05), (backward, name)


def rank_of_the_plans(folder: Path) -> None:
    """Runs all plans, and says how much memory each took."""
    rank, peaks = int(os.environ["RANK"]), []
    batch(CONFIG, 0, 0)  # the text is read and kept
    with join(PATIENCE, transport="gloo:sockets") as session:  # through shared memory what is sent goes at once
        for path in sorted(folder.glob("*.plan.json")):
            plan, training = load_plan(path), gpt(2, only=rank)
            peaks.append(memory_of(lambda plan=plan, training=training: run_training(  # type: ignore[misc]
                plan, session, training), CPU)[1].peak)
    print(json.dumps(peaks))


if __name__ == "__main__":
    rank_of_the_plans(Path(sys.argv[1]))
