"""One rank of a plan run alone: what it runs, what it holds, and the step that all of them predict."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.measure.test_measure_stages import gpt
from tests.support import ROOT, chain, pipeline, refusal, shows, slow
from tests.support.graph_training import training
from tests.support.steady_costs import steady
from tests.support.training_graphs import case, varied
from weft.runtime import Boundary, MasterWeights, Plan, SessionError, Training, measure_stages, plan_of, save_plan
from weft.runtime.measure.stage_costs import measured_problem, static_bytes
from weft.runtime.ranks.launch import launch_local
from weft.runtime.replay.replay import predict
from weft.runtime.replay.single_rank import measure_rank, single_rank
from weft.solver.baselines import baseline

CPU = torch.device("cpu")
WIDTH = 4


def stages(plan: Plan, rank: int) -> Training:
    """What ``--stages tests.runtime.replay.test_single_rank:stages`` gives: a linear layer a stage."""
    assert plan.stage_ranks is not None
    mine = {s: nn.Linear(WIDTH, WIDTH) for s, where in enumerate(plan.stage_ranks) if where == rank}

    def data(step: int, micro_batch: int) -> Tensor:
        return torch.ones(2, WIDTH)

    return Training(mine, [Boundary((2, WIDTH))] * (len(plan.stage_ranks) - 1), data, data, nn.functional.mse_loss,
                    optimizer=torch.optim.SGD(list(nn.ModuleList(mine.values()).parameters()), 0.1))


# -- what runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mode"), [
    ("V", "full"), ("M head", "split"), ("NN", "recompute"), ("X", "full"), ("tied", "split"), ("skip", "offload"),
    ("skip", "offload beside")])
def test_every_rank_runs_all_its_blocks_by_itself(name: str, mode: str) -> None:
    made = varied(case(name, 2), mode)
    problem = made.problem
    plan = plan_of(baseline("greedy", problem, 3))
    for rank in (0, 1):
        with single_rank(plan, rank, CPU) as session:
            part = training(made, plan, session, torch.float32, steps=1, clip_norm=1.0)
            before = [p.detach().clone() for module in part.stages.values() for p in module.parameters()]
            cost = measure_rank(plan, session, part, repeats=1)
        after = [p for module in part.stages.values() for p in module.parameters()]
        here = [block for block in problem.blocks if rank in block.devices]
        assert set(cost.durations) == {block.name for block in here} and cost.works == 3 * len(here)
        assert cost.span >= 3 * 0.5 * sum(cost.durations.values()) and cost.own >= 0 and cost.update > 0
        assert cost.peak > cost.held > 0 and cost.peak_update > cost.held
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))  # gradients came, and were used


@pytest.mark.parametrize("backward", [slow("full"), "split"])
def test_the_peak_of_a_rank_alone_is_the_planned_one(backward: str) -> None:
    costs = steady(measure_stages(gpt(2), device=CPU, repeats=1))
    problem = measured_problem(costs, backward=backward)
    schedule = baseline("1f1b" if backward == "full" else "zb-h1", problem, 8)
    plan = plan_of(schedule.with_solver(static_memory=[static_bytes(costs, s, optimizer_copies=1, micro_batches=8)
                                                       for s in (0, 1)]))
    found = []
    for rank in (0, 1):
        part = gpt(2, only=rank)
        part.optimizer = torch.optim.SGD(list(part.stages[rank].parameters()), 0.1, momentum=0.9)
        with single_rank(plan, rank, CPU) as session:
            found.append(measure_rank(plan, session, part, repeats=1))
    for row in predict(plan, found, "here", 1.0).rows:
        assert row.planned_peak is not None and row.peak == pytest.approx(row.planned_peak, rel=0.05)


@pytest.mark.parametrize("backward", ["full", "split"])
def test_weights_go_when_a_rank_has_been_measured(backward: str) -> None:
    """The next rank alone needs their place: a hook or a saved result that holds a weight would hold it for ever."""
    weights: list[weakref.ref[Tensor]] = []

    def built() -> nn.Module:
        module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(torch.bfloat16)
        weights.extend(weakref.ref(p) for p in module.parameters())
        return module

    def stage(rank: int, every: int) -> Training:
        modules = {s: built() for s in range(every)} if every > 1 else {rank: built()}
        masters = MasterWeights(p for module in modules.values() for p in module.parameters())
        weights.extend(weakref.ref(p) for p in masters.parameters())

        def data(step: int, micro_batch: int) -> Tensor:
            return torch.ones(2, WIDTH, dtype=torch.bfloat16)

        return Training(modules, [Boundary((2, WIDTH), torch.bfloat16)], data, data, nn.functional.mse_loss,
                        masters=masters, optimizer=torch.optim.Adam(masters.parameters()))

    costs = measure_stages(stage(0, 2), device=CPU, repeats=1)
    plan = plan_of(baseline("1f1b", measured_problem(costs, backward=backward), 2))
    for rank in (0, 1):
        with single_rank(plan, rank, CPU) as session:
            measure_rank(plan, session, stage(rank, 1), 1)
    gc.collect()
    assert len(weights) == 32 and all(weight() is None for weight in weights)


def test_a_rank_that_is_not_there_is_refused() -> None:
    plan = plan_of(baseline("1f1b", pipeline(chain(2)), 2))
    missing = pytest.raises(SessionError, match="the plan has the ranks 0 to 1, there is no rank 2")
    with missing, single_rank(plan, 2, CPU):
        pass


def test_stages_of_another_model_are_refused() -> None:
    plan = dataclasses.replace(plan_of(baseline("1f1b", pipeline(chain(2)), 2)), signatures={"1": "0123456789abcdef"})
    with single_rank(plan, 1, CPU) as session, pytest.raises(SessionError, match="the plan was made for another model"):
        measure_rank(plan, session, stages(plan, 1))


def test_a_device_that_is_too_small_is_told_with_the_rank() -> None:
    plan = plan_of(baseline("1f1b", pipeline(chain(2)), 2))
    with single_rank(plan, 1, CPU) as session:
        part = stages(plan, 1)

        def full(y: Tensor, target: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("no room for 3 GiB\nand more")

        part.loss = full
        with pytest.raises(SessionError, match=r"rank 1 ran out of memory on cpu while running 1F0.*: no room for 3 G"):
            measure_rank(plan, session, part)


# -- what is made of it ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_share_one_device_over_shared_memory(plan_path: str) -> None:
    root = str(ROOT)
    ended = launch_local(2, [sys.executable, "-m", "weft", "replay", plan_path, "--stages", f"{__name__}:stages",
                             "--transport", "shared"], timeout=120, environment={"PYTHONPATH": root})
    assert [end.code for end in ended] == [0, 0], ended
    assert "loss per batch" in ended[0].output


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan_path(tmp_path: Path) -> str:
    problem = dataclasses.replace(pipeline(chain(2), forward=1, backward=2), time_unit="ms")
    save_plan(plan_of(baseline("1f1b", problem, 3)), tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


@pytest.mark.slow
def test_all_ranks_alone_from_the_command_line(plan_path: str) -> None:
    told = shows("replay", plan_path, "--stages", f"{__name__}:stages", "--rank-alone", "all", "--json", "--device",
                  "cpu")
    found = json.loads(told)
    assert [row["rank"] for row in found["rows"]] == [0, 1] and found["planned"] == pytest.approx(0.012)
    assert found["step"] > 0 and found["unmeasured"] == []
    text = shows("replay", plan_path, "--stages", f"{__name__}:stages", "--rank-alone", "1")
    assert "rank 0 as planned" in text and len(text.splitlines()) == 4


@pytest.mark.parametrize(("options", "message"), [
    (["--rank-alone", "two", "--stages", "a:b"], "--rank-alone is 'two', it must be the number of a rank, or all"),
    (["--rank-alone", "7", "--stages", f"{__name__}:stages"], "there is no rank 7"),
    (["--rank-alone", "0"], "--rank-alone runs real stages"),
    (["--rank-alone", "0", "--stages", "a:b", "--transport", "gloo"], "--transport is for ranks that run together"),
    (["--rank-alone", "0", "--stages", "nowhere:b"], "--stages nowhere:b: No module named 'nowhere'"),
    (["--emulate", "--json"], "--device and --json of replay are for --rank-alone")])
def test_what_cannot_be_run_alone_is_refused(plan_path: str, options: list[str], message: str) -> None:
    assert message in refusal("replay", plan_path, *options)
