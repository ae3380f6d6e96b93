"""What is decided for a model on one rank in this process: what is measured and run leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from tests.support.builders import pipeline
from tests.support.captured_models import made
from tests.support.one_rank import one_rank
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.planning.decide import PipelineDecision, decide
from weft.app.pipeline.planning.measuring import Example, Ranks
from weft.app.pipeline.planning.problems import StagesRun
from weft.app.pipeline.run.peaks import planned_peaks
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import BATCH
from weft.runtime.captured.division import Goal
from weft.runtime.captured.purity import Purity
from weft.runtime.plan.plan import plan_of
from weft.runtime.ranks.session import Session
from weft.runtime.replay.planned_steps import PlannedSteps
from weft.solver.baselines import baseline


def decided(name: str, with_target: bool = True, **settings: Any) -> tuple[nn.Module, PipelineDecision]:
    case = made(name, 2)
    captured = Captured.of(case.model, case.args, case.kwargs)
    leaves = tree_flatten((case.args, case.kwargs))[0]
    named = {BATCH + node.name: leaf for node, leaf in zip(captured.inputs, leaves, strict=True)
             if isinstance(leaf, torch.Tensor)}
    goal = Goal(case.loss, None if case.loss is None else tree_flatten(case.target)[1])
    target = None if case.target is None or not with_target else [case.target]
    if target is not None:
        named["target.0"] = case.target
    random = torch.get_rng_state()
    with one_rank() as session:
        decision = decide(captured, Purity(captured), Example(leaves, target, named), goal, session,
                          PipelineOptions(micro_batches=3, loss=case.loss, target=case.target, time_limit=0.3,
                                          **settings))
    assert torch.equal(torch.get_rng_state(), random)
    return case.model, decision


@pytest.mark.parametrize(("name", "backward"), [("gpt", "full"), ("gpt", "split"), ("masked", "split")])
def test_measuring_and_running_leave_no_trace_and_find_the_planned_peak(name: str, backward: str) -> None:
    case = made(name, 2)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    model, decision = decided(name, spec={"placement": {"backward": [backward]}})
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert decision.places == () and decision.peaks is not None
    assert decision.peaks[0] == pytest.approx(planned_peaks(decision.plan)[0], rel=0.05)
    assert any(note.startswith("planned times are measured in ") for note in decision.notes)
    assert 0 < decision.plan.solver["makespan_bound"] <= decision.plan.makespan


class _Table(nn.Module):
    """A table, with sparse gradients or not, and a weight that has none."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(64, 8, sparse=sparse), nn.Linear(8, 4)
        self.still = nn.Parameter(torch.ones(500))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.out(self.table(ids))
        return (x + self.still.detach().mean()).square().mean()


@pytest.mark.parametrize("name", ["gpt", "masked", "sparse", "dense"])
def test_the_first_step_that_is_run_holds_what_the_second_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = None if name in ("sparse", "dense") else made(name, 2)
    model, args, kwargs, target, loss = (_Table(name == "sparse"), (torch.arange(6).view(2, 3),), {}, None, None
                                         ) if case is None else (case.model, case.args, case.kwargs, case.target,
                                                                 case.loss)
    captured = Captured.of(model, args, kwargs)
    leaves = tree_flatten((args, kwargs))[0]
    named = {BATCH + node.name: leaf for node, leaf in zip(captured.inputs, leaves, strict=True)
             if isinstance(leaf, torch.Tensor)} | ({} if target is None else {"target.0": target})
    goal = Goal(None, None) if target is None else Goal(loss, tree_flatten(target)[1])
    plan = plan_of(baseline("1f1b", pipeline([0]), 3))
    with one_rank() as session:
        ranks = Ranks(captured, Purity(captured), Example(leaves, None if target is None else [target], named), goal,
                      session, PipelineOptions(micro_batches=3))
        with ranks.stepping((), plan) as steps:
            first = steps.memory()
            # Gloo's thread may be the last to hold what ranks meet with: it is as if this were never released.
            start, met = Session.common_start, list[Tensor]()
            monkeypatch.setattr(Session, "common_start",
                                lambda session: met.append(torch.ones(1000)) or start(session))  # type: ignore[func-returns-value]
            second = steps.memory()
    assert met and first.peaks == second.peaks and first.slots == second.slots


def test_a_published_schedule_is_built_once_and_watched_in_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watch(name: str, run: Callable[[PlannedSteps], Any]) -> None:
        def watched(steps: PlannedSteps) -> Any:
            seen.append(name)
            return run(steps)

        monkeypatch.setattr(PlannedSteps, name, watched)

    watch("step", PlannedSteps.step)
    watch("memory", PlannedSteps.memory)
    watch("close", PlannedSteps.close)
    decided("gpt", schedule="1f1b")
    assert seen[0] == "memory" and seen[-1] == "close" and {*seen[1:-1]} == {"step"}


def test_what_was_measured_is_taken_again_unless_it_is_to_be_measured(monkeypatch: pytest.MonkeyPatch,
                                                                      tmp_path: Path) -> None:
    monkeypatch.setattr(StagesRun, "noise_note", "")
    _, first = decided("skip", cache=tmp_path)
    _, again = decided("skip", cache=tmp_path)
    assert (again.places, again.plan, again.peaks) == (first.places, first.plan, first.peaks)
    assert again.notes[:-1] == first.notes and "remeasure=True measures and plans again" in again.notes[-1]
    entry, = (tmp_path / "plans").iterdir()
    before = entry.read_text()
    _, anew = decided("skip", cache=tmp_path, remeasure=True)
    assert not any("as measured on" in note for note in anew.notes) and entry.read_text() != before
    monkeypatch.setattr(StagesRun, "noise_note", "; a machine with other work")
    decided("skip", cache=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_no_target_is_said_in_the_notes() -> None:
    _, decision = decided("skip", with_target=False, schedule="gpipe")
    assert any("no target was given" in note for note in decision.notes)


@pytest.mark.slow
def test_too_little_memory_is_one_sentence() -> None:
    with pytest.raises(CaptureError, match=r"no cut leaves a schedule that fits: rank 0 needs \d+ bytes for weights"):
        decided("gpt", memory=1000, memory_plan="keep")
    with pytest.raises(CaptureError, match="no cut leaves a schedule that fits, and no plan of 33 operators in 1"):
        decided("gpt", memory=1000)
    needed = planned_peaks(decided("gpt", schedule="gpipe")[1].plan)[0]
    with pytest.raises(CaptureError, match="no cut leaves a schedule that fits: schedule 'gpipe': "):
        decided("gpt", memory=needed - 1, schedule="gpipe", memory_plan="keep")
    with pytest.raises(CaptureError, match=r"memory is 5000, and the spec has cluster\.memory too: give one"):
        decided("gpt", memory=5000, spec={"cluster": {"memory": 5000}})


def test_a_spec_limits_the_memory_that_is_planned_with() -> None:
    needed = planned_peaks(decided("gpt", schedule="gpipe")[1].plan)[0]
    _, decision = decided("gpt", spec={"cluster": {"memory": needed - 1}}, memory_plan="keep")
    assert planned_peaks(decision.plan)[0] < needed
    static = decision.plan.solver["static_memory"][0]
    assert decision.plan.problem.devices[0].memory == needed - 1 - static
