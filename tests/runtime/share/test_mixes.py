"""A pipeline, a data parallel training and an inference on ranks that they share: each as it is alone, whatever becomes
of the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_processes import found_by, launch_jobs
from tests.support.shared_mixes import ADDED, RATIO, STEPS, mix
from weft.models.share.job import composed
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import StageWork
from weft.runtime.share.stages_plan import job_plans
from weft.solver.baselines import baseline
from weft.solver.problem.rounds import Rounds, Run

pytestmark = pytest.mark.slow


def mixed(rounds: int = 2) -> Plan:
    problem = composed(mix())
    made = Rounds(problem, Run.of(problem, {job: steps * rounds for job, steps in RATIO.items()}, RATIO))
    schedule = replace(baseline("greedy", made.problem, made.run.rounds), rounds=made)
    return plan_of(schedule.with_solver(share={"jobs": [{"name": "data", "micro_batches": ADDED}]}))


def test_what_each_job_runs_by_itself() -> None:
    pipeline, data, answers = job_plans(mixed())
    assert (pipeline.ranks, pipeline.replicas, pipeline.batches, pipeline.size) == ((0, 1, 2), 1, 1, 4)
    assert (data.ranks, data.replicas, data.batches, data.size, data.plan.micro_batches) == ((0, 1), 2, 2, 1, ADDED)
    assert (answers.ranks, answers.plan.micro_batches, answers.trains) == ((1, 2), 6, False)
    assert answers.plan.stage_ranks == (1, 0)  # its first stage is on gpu2, its own rank 1
    assert data.blocks[StageWork(0, "B", 1)] == ("data/others", 0)
    assert data.blocks[StageWork(0, "B", 2)] == ("data/B0", 0)
    assert data.opens >= {StageWork(0, "F", 0)} and StageWork(0, "F", 1) not in data.opens
    assert StageWork(0, "B", 1) in data.closes and StageWork(0, "B", 0) not in data.closes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the processes of three jobs found in five runs, and in each alone."""
    folder = tmp_path_factory.mktemp("mixes")
    launch_jobs("tests.support.shared_mixes", folder, mixed())
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    return found_by(folder)


def test_losses_are_those_of_each_alone(found: Any) -> None:
    for job in ("pipeline", "data"):
        both = found["together"][job]
        assert both["fault"] is None and both["losses"] == found["alone"][job][:len(both["losses"])]
        assert len(both["losses"]) == both["steps"] == STEPS
    answers = found["together"]["answers"]
    assert (answers["losses"], answers["fault"], answers["steps"]) == ([], None, STEPS)
    assert len(set(found["alone"]["pipeline"])) == STEPS


def test_an_inference_answers_as_it_does_alone(folder: Path) -> None:
    answers = json.loads((folder / "answers.1.answers").read_text())  # its last stage is on rank 1
    assert answers["together"] == answers["alone"] and len(answers["alone"]) > 100
    assert answers["failed"] == answers["alone"]


@pytest.mark.parametrize(("run", "job", "why", "steps"), [
    ("failed", "pipeline", "RuntimeError in step 1: out of memory, as it were (rank 1)", 1),
    ("failed last", "pipeline", "RuntimeError in step 1: out of memory, as it were (rank 2)", 1),
    ("failed answers", "answers", "RuntimeError in step 0: out of memory, as it were (rank 1)", 0)])
def test_a_job_that_fails_on_one_rank_is_over_on_all_and_leaves_the_others(found: Any, run: str, job: str, why: str,
                                                                           steps: int) -> None:
    assert found[run][job]["fault"] == why and found[run][job]["steps"] == steps
    for other in {"pipeline", "data", "answers"} - {job}:
        assert found[run][other]["fault"] is None and found[run][other]["steps"] == STEPS
        assert found[run][other]["losses"] == found["together"][other]["losses"]


def test_jobs_that_end_leave_the_others_running_beyond_the_plan(found: Any) -> None:
    longer = found["longer"]
    assert longer["pipeline"]["losses"] == found["alone"]["pipeline"][:1]
    assert longer["data"]["losses"] == found["alone"]["data"] and len(longer["data"]["losses"]) == 2 * STEPS
