"""Stages of a graph, measured: several inputs and outputs, skips, losses inside; planned and run from that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support.examples import slow
from tests.support.steady_costs import steady
from tests.support.training_graphs import case
from weft.runtime import (
    Boundary,
    MeasuredStages,
    Ports,
    StageGraph,
    Training,
    load_stage_costs,
    measure_stages,
    measured_problem,
    plan_of,
    save_stage_costs,
)
from weft.runtime.measure.stage_costs import MeasureError, stage_costs_from_json, static_bytes
from weft.runtime.replay.replay import predict
from weft.runtime.replay.single_rank import measure_rank, single_rank
from weft.runtime.train.wiring import Wiring
from weft.solver import Device, baseline
from weft.solver.io.entries import FormatError

CPU = torch.device("cpu")
ROWS, WIDTH, INNER = 96, 192, 1600
PORTS = {0: Ports(("words",), ("x", "aside")), 1: Ports(("x",), ("left",)), 2: Ports(("x", "mask"), ("right",)),
         3: Ports(("left", "right", "aside", "target"), ("loss",))}


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.up, self.down = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(words)
        return self.down(torch.tanh(self.up(x))), x


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor, *mask: Tensor) -> tuple[Tensor]:
        y = self.two(torch.tanh(self.one(x)))
        return (y if not mask else y * mask[0],)


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.out = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, left: Tensor, right: Tensor, aside: Tensor, target: Tensor) -> tuple[Tensor]:
        return (nn.functional.mse_loss(self.out(torch.tanh(self.up(left + right + aside))), target),)


def data(step: int, micro_batch: int) -> dict[str, Tensor]:
    return {"words": torch.arange(ROWS) % 50, "mask": torch.ones(ROWS, 1), "target": torch.ones(ROWS, WIDTH)}


def training(only: int | None = None, boundaries: bool = True) -> Training:
    made = {0: Stem, 1: Branch, 2: Branch, 3: Join}
    stages: dict[int, nn.Module] = {s: make() for s, make in made.items() if only in (None, s)}
    looks = dict.fromkeys(("x", "aside", "left", "right"), Boundary((ROWS, WIDTH)))
    return Training(stages, looks if boundaries else {}, data, ports=PORTS)


def stages() -> Training:
    """What ``weft profile --stages tests.runtime.measure.test_measure_graphs:stages`` measures."""
    return training()


VALUE = ROWS * WIDTH * 4


def test_each_stage_says_what_it_takes_and_what_gradients_it_owes() -> None:
    costs = measure_stages(training(boundaries=False), device=CPU, repeats=1)  # looks are found by running
    assert [cost.takes for cost in costs] == [{}, {0: VALUE}, {0: VALUE}, {1: VALUE, 2: VALUE, 0: VALUE}]
    assert [cost.owes for cost in costs] == [cost.takes for cost in costs]
    assert [cost.output_bytes for cost in costs] == [2 * VALUE, VALUE, VALUE, 0]
    for cost in costs:
        for passes in cost.passes.values():
            assert sum(run.memory.change for run in passes.values()) == 0
            assert all(run.time.seconds > 0 for run in passes.values())
    weights = [4 * cost.parameter_bytes for cost in costs]
    assert [static_bytes(costs, s, micro_batches=1) - w for s, w in enumerate(weights)] == [
        3 * VALUE, 2 * VALUE, 2 * VALUE, 3 * VALUE]  # x to two stages and aside to one; results and gradients


def test_branches_alike_are_measured_once_if_they_take_alike() -> None:
    assert [cost.same_as for cost in measure_stages(training(), device=CPU, repeats=1)] == [None] * 4  # one has a mask
    alike = training()
    alike.ports = {**PORTS, 2: Ports(("x",), ("right",))}
    costs = measure_stages(alike, device=CPU, repeats=1)
    assert [cost.same_as for cost in costs] == [None, None, 1, None]
    assert costs[2].takes == {0: VALUE} and costs[2].passes is costs[1].passes


@pytest.mark.parametrize("name", ["skip", "branches"])
@pytest.mark.parametrize("backward", ["full", "split"])
def test_what_is_measured_is_a_problem_of_the_same_stages(name: str, backward: str) -> None:
    made = case(name, 2)
    ports = {s: Ports(node.takes, node.gives) for s, node in enumerate(made.stages)}
    part = Training(dict(enumerate(made.modules(torch.float32))), {}, made.data, ports=ports, losses=made.losses)
    problem = measured_problem(measure_stages(part, device=CPU, repeats=1), backward=backward)
    graph = StageGraph.of(problem)
    assert [problem.blocks[stage.blocks["F"]].name for stage in graph.stages] == [f"F{s}" for s in range(len(ports))]
    part.boundaries = {value: Boundary((1,)) for node in made.stages for value in node.gives
                       if value not in made.losses}
    Wiring(graph, part)  # every value, and every gradient, is waited for where it is taken
    plan_of(baseline("greedy", problem, 3))


@pytest.mark.parametrize("backward", [slow("full"), "split"])
def test_the_peak_of_a_rank_alone_is_the_planned_one(backward: str) -> None:
    """Within 5 %, where few values arrive long before they are needed: those are for the reserve, not in the plan."""
    costs = steady(measure_stages(training(), device=CPU, repeats=1))
    held = [static_bytes(costs, s, optimizer_copies=1, micro_batches=6) for s in range(4)]
    problem = measured_problem(costs, backward=backward, optimizer_copies=1)
    room = [2 * passes["F"].memory.change + max(run.memory.peak for run in passes.values())
            for passes in (cost.passes[backward] for cost in costs)]
    problem = replace(problem, devices=tuple(map(Device, "abcd", room)))
    plan = plan_of(baseline("greedy", problem, 6).with_solver(static_memory=held))
    found = []
    for rank in range(4):
        part = training(only=rank)
        part.optimizer = torch.optim.SGD(list(part.stages[rank].parameters()), 0.1, momentum=0.9)
        with single_rank(plan, rank, CPU) as session:
            found.append(measure_rank(plan, session, part, repeats=1))
    rows = predict(plan, found, "here", 1.0).rows
    for row in rows:
        assert row.planned_peak is not None and row.peak == pytest.approx(row.planned_peak, rel=0.05)


@pytest.mark.parametrize(("ports", "message"), [
    ({1: Ports(("right",), ("left",))}, "stage 1 takes 'right' from stage 2: number the stages so"),
    ({0: Ports(("letters",), ("x", "aside"))}, r"stage 0 takes 'letters', which no stage gives and inputs\(0, 0\)"),
    ({0: Ports(("words",), ("x",))}, "stage 0 gives 2 values, but its ports name 1: x"),
    ({3: Ports(("left", "right", "aside", "target"), ("end",))}, "stage 3 gives no loss, and nothing that a gradient"),
    ({4: Ports((), ())}, r"ports names the stages \[0, 1, 2, 3, 4\], but the training holds the stages \[0, 1, 2, 3\]"),
])
def test_ports_that_do_not_fit_are_refused(ports: Mapping[int, Ports], message: str) -> None:
    made = training()
    made.ports = {**PORTS, **ports}
    if 0 in ports:
        made.ports = {**made.ports, 3: Ports(("left", "right", "mask", "target"), ("loss",))}
    with pytest.raises(MeasureError, match=message):
        measure_stages(made, device=CPU, repeats=1)


def test_a_file_of_a_graphs_costs_goes_round(tmp_path: Path) -> None:
    measured = MeasuredStages("CPU", "2.13", tuple(measure_stages(training(), device=CPU, repeats=1)))
    save_stage_costs(measured, tmp_path / "costs.json")
    assert load_stage_costs(tmp_path / "costs.json") == measured
    value = json.loads((tmp_path / "costs.json").read_text())
    value["stages"][1]["takes"] = {"2": 1}
    with pytest.raises(FormatError, match=r"stages\[1\]: takes: '2' is no stage before 1"):
        stage_costs_from_json(value)
    value["stages"][1]["takes"] = {}
    with pytest.raises(FormatError, match="owes must stand beside takes, and name no other stages"):
        stage_costs_from_json(value)


def test_a_skipped_stage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = measure_stages(training(), device=CPU, repeats=1)
    costs[2] = replace(costs[2], skipped="needs too much")
    with pytest.raises(MeasureError, match="stage 2 was not measured: it needs too much"):
        measured_problem(costs)


class Scaled(nn.Module):
    """Scales by a norm that is computed under ``torch.no_grad``, into a tensor that is there, as spectral norms are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x: Tensor, norm: Tensor) -> tuple[Tensor]:
        found = torch.empty_like(norm)
        torch.div(norm, 2.0, out=found)
        return ((x @ self.weight / found).mean(),)


def test_what_is_given_on_without_a_gradient_is_taken_without_one() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(8))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x @ self.weight
            return y, y.detach().norm()[None]

    found = measure_stages(Training(
        {0: Gives(), 1: Scaled()}, {"y": Boundary((4, 8)), "norm": Boundary((1,))},
        lambda step, m: {"x": torch.ones(4, 8)}, ports={0: Ports(("x",), ("y", "norm")), 1: Ports(("y", "norm"), (
            "loss",))}, untrained=("norm",)), device=CPU, repeats=1)
    assert [cost.stage for cost in found] == [0, 1]
