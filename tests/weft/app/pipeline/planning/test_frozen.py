"""Models that are frozen in part: what has no pass back, in plans and when they are measured and run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from weft.app.pipeline.planning.frozen import baseline_in_a_row, in_a_row, published, require_backwards
from weft.runtime import MeasuredStages, StageCosts, measure_stages, measured_problem, plan_of
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import BATCH, CapturedCut
from weft.runtime.captured.division import Data, Goal, training_of
from weft.runtime.captured.loss import LOSS
from weft.runtime.captured.purity import Purity, first_weight, work_of
from weft.runtime.measure.stage_costs import stage_costs_from_json, stage_costs_to_json, static_bytes
from weft.runtime.train.stage import StageRunner
from weft.solver import NotApplicable, Schedule, baseline, solve, validate, violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

WIDTH, CPU = 6, torch.device("cpu")


class Adapted(nn.Module):
    """Layers of which some are frozen, with what the first ones give read by the last one too."""

    def __init__(self, trained: Sequence[int], layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        for i, layer in enumerate(self.layers):
            layer.requires_grad_(i in trained)

    def forward(self, x: Tensor) -> Tensor:
        early: list[Tensor] = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            early.append(x)
        return x + early[1] + early[3]


def captured(*trained: int) -> Captured:
    torch.manual_seed(0)
    return Captured.of(Adapted(trained).double(), (torch.randn(3, WIDTH, dtype=torch.float64),))


def costs_of(cut: CapturedCut) -> list[StageCosts]:
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    goal = Goal(lambda output, target: output.square().mean(), None)
    return measure_stages(training_of(cut, range(cut.count), goal, Data([{BATCH + "x": x}])), device=CPU, repeats=1)


def blocks(problem: Problem) -> str:
    return " ".join(block.name for block in problem.blocks)


#: Places of cuts into stages of two layers each.
PLACES = [4, 8]


def test_a_frozen_first_stage_runs_forward_only_and_no_gradient_is_sent_to_it() -> None:
    cut = CapturedCut(captured(2, 4, 5), PLACES)
    costs = costs_of(cut)
    assert [cost.trains for cost in costs] == [False, True, True]
    assert [set(cost.owes or ()) for cost in costs] == [set(), set(), {1}]
    assert blocks(measured_problem(costs, backward="split")) == "F0 F1 F2 I2 W2 I1 W1"
    assert blocks(measured_problem(costs)) == "F0 F1 F2 B2 B1"
    file = MeasuredStages("cpu", "2", tuple(costs))
    assert stage_costs_from_json(stage_costs_to_json(file)) == file
    one = (WIDTH + 1) * WIDTH * 8
    assert [cost.trained_bytes for cost in costs] == [0, one, None]
    assert static_bytes(costs, 0) < static_bytes(costs, 1) - 2 * one


def test_a_frozen_stage_behind_a_trained_one_has_no_weight_gradients() -> None:
    cut = CapturedCut(captured(0), PLACES)
    costs = costs_of(cut)
    assert all(cost.trains for cost in costs) and [cost.deferred for cost in costs] == [(WIDTH + 1) * WIDTH, 0, 0]
    assert blocks(measured_problem(costs, backward="split")) == "F0 F1 F2 I2 W2 I1 W1 I0 W0"


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zb-h2", "zb-auto"])
def test_published_schedules_leave_out_what_is_not_there(name: str) -> None:
    costs = costs_of(CapturedCut(captured(2, 5), PLACES))
    made: list[Schedule] = []
    for backward in ("full", "split"):
        try:
            made.append(published(name, measured_problem(costs, backward=backward), 4))
        except NotApplicable:
            continue
    for schedule in made:
        plan = plan_of(schedule)
        graph = plan.vocabulary.graph
        assert graph is not None and [stage.backward is not None for stage in graph.stages] == [False, True, True]
        validate(schedule, capacities=False)
        assert schedule.makespan_bound <= schedule.makespan
    assert made


def test_a_search_leaves_them_out_too_and_a_plan_without_a_backward_that_is_needed_is_refused() -> None:
    frozen = CapturedCut(captured(2, 5), PLACES)
    plan = plan_of(solve(measured_problem(costs_of(frozen), backward="split"), 3, effort=0.2))
    require_backwards(frozen, plan)
    with pytest.raises(CaptureError, match=r"the plan has no backward for stage 0, but layers\.1\.weight in it is tr"):
        require_backwards(CapturedCut(captured(1, 2, 5), PLACES), plan)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("trained", [(2, 5), (0,), (1, 3), (5,), (3,)])
@pytest.mark.parametrize("split", [False, True])
def test_gradients_are_the_models(trained: tuple[int, ...], split: bool) -> None:
    made = captured(*trained)
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    made.model(x).square().mean().backward()
    wanted = gradients(made.model)
    cut = CapturedCut(made, PLACES, Purity(made, light=split))
    goal = Goal(lambda output, target: output.square().mean(), None)
    training = training_of(cut, range(3), goal, Data())
    assert training.ports is not None
    trains = [cost.trains for cost in costs_of(cut)]
    values: dict[str, Tensor] = {BATCH + "x": x}
    runners = {s: StageRunner(module, split=split, constant=[
        i for i, name in enumerate(training.ports[s].takes) if name.startswith(BATCH) or name in training.untrained])
        for s, module in training.stages.items()}
    for s, runner in runners.items():
        run = runner.forward if trains[s] else runner.infer_of
        values.update(zip(training.ports[s].gives, run(0, *(values[n] for n in training.ports[s].takes)), strict=True))
    back = {LOSS: torch.ones_like(values[LOSS])}
    for s, runner in reversed(runners.items()):
        if trains[s]:
            found = (runner.input_grad if split else runner.backward)(0, *(back.get(n) for n in
                                                                           training.ports[s].gives))
            for n, gradient in zip(training.ports[s].takes, found, strict=True):
                assert gradient is None or n not in training.untrained
                if gradient is not None:
                    back[n] = back[n] + gradient if n in back else gradient
            if split:
                runner.weight_grad(0)
        runner.close()
    found_gradients = gradients(made.model)
    assert set(found_gradients) == set(wanted)
    assert all(torch.allclose(found_gradients[name], g, rtol=1e-12) for name, g in wanted.items())


def test_what_learns_and_what_work_is_left() -> None:
    made = captured(2, 4)
    purity = Purity(made)
    names = [node.name for node in made.calls]
    assert {name for node, name in zip(made.calls, names, strict=True) if node in purity.learned} == set(names[4:])
    work = dict(zip(names, work_of(made, purity), strict=True))
    assert work["linear"] == work["tanh"] == 1 / 3 and work["linear_2"] == 1 and work["linear_3"] == 2 / 3
    assert first_weight(made) == 0
    with pytest.raises(CaptureError, match="Adapted has no trained parameter that an operator reads: there is nothing"):
        first_weight(captured())


def test_what_is_written_into_a_tensor_is_learned_by_all_who_read_it() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            room = x * 2.0
            room[:, :2] = self.layer(x)[:, :2]
            return room * 3.0

    made = Captured.of(Writes(), (torch.randn(3, WIDTH),))
    learned = {node.name for node in Purity(made).learned}
    assert "mul_1" in learned


#: The stages that each takes from: two towers of two, joined by the last of the second.
TOWERS = {0: [], 1: [0], 2: [], 3: [1, 2]}


def towers() -> Problem:
    """In a V on two devices, with split backwards."""
    device = {0: 0, 1: 1, 2: 1, 3: 0}
    gives = {s: [t for t, own in TOWERS.items() if s in own] for s in TOWERS}
    blocks = []
    for s, d in device.items():
        blocks += [Block(f"F{s}", BlockKind.FORWARD, (d,), 1.0, (1,), after=tuple(
                       Dependency(f"F{t}") for t in TOWERS[s])),
                   Block(f"I{s}", BlockKind.INPUT_GRAD, (d,), 1.0, (0,), after=tuple(
                       Dependency(f"I{t}") for t in gives[s]) or (Dependency(f"F{s}"),)),
                   Block(f"W{s}", BlockKind.WEIGHT_GRAD, (d,), 1.0, (-1,), after=(Dependency(f"I{s}"),))]
    return Problem("towers", (Device("rank0", None), Device("rank1", None)), tuple(blocks))


@pytest.mark.parametrize("name", ["zb-v", "v-block"])
def test_a_schedule_for_chains_holds_for_towers(name: str) -> None:
    problem = towers()
    with pytest.raises(NotApplicable, match="do not follow each other"):
        baseline(name, problem, 6)
    found = baseline_in_a_row(name, problem, 6)
    assert found.problem is problem and not violations(found)
    chain = in_a_row(problem)
    assert in_a_row(chain) == chain  # a chain stays as it is
    assert {d.block for d in chain.blocks[chain.index["F2"]].after} == {"F1"}
    assert {d.block for d in chain.blocks[chain.index["I1"]].after} == {"I2", "I3"}
    assert chain.blocks[chain.index["W1"]] == problem.blocks[problem.index["W1"]]
