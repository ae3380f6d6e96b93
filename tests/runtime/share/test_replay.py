"""What is said before the ranks of jobs are waited for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.share.test_stages_plan import plan
from tests.support.commands import refusal
from tests.support.job_processes import found_by, launch_jobs, turns_taken
from tests.support.shared_ranks import STEPS, UNIT, data_parallel
from weft.app.lib.options import SearchOptions
from weft.app.share.search import Question, share_jobs
from weft.cli.main import main
from weft.runtime.plan.plan import load_plan, plan_of, save_plan
from weft.runtime.share.replay import JobRun, predicted_seconds
from weft.runtime.share.stages_plan import job_plans
from weft.solver.judge.collective_order import collective_order_faults


@pytest.fixture
def path(tmp_path: Path) -> str:
    save_plan(plan(data_parallel("a", 1, 2, 3, 5), data_parallel("b", 1, 4, 2, 2)), tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


@pytest.mark.slow
def test_the_command_trains_the_jobs(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    where = "tests.support.shared_ranks"
    assert main(["replay", path, "--stages", f"a={where}:first", "--stages", f"b={where}:second", "--stretched",
                 "--timeout", "90"]) == 0, capfd.readouterr().err
    told = capfd.readouterr().out
    assert f"a: {STEPS} steps\n" in told and f"b: {STEPS} steps\n" in told and told.count("loss per step") == 2


BOTH = ["--stages", "a=m:f", "--stages", "b=m:g"]


@pytest.mark.parametrize(("arguments", "message"), [
    (BOTH[:2], "says nothing of 'b': give --stages b=MODULE:FUNCTION"),
    ([*BOTH, "--stages", "c=m:h"], "names the job 'c', and .* has the jobs a, b"),
    ([*BOTH, "--stages", "m:h"], "give JOB=MODULE:FUNCTION once for each job"),
    (["--stages", "m:f", "--stages", "m:g"], "--stages is given twice"),
    ([*BOTH, "--emulate"], "--emulate is not for jobs that are trained"),
    ([*BOTH, "--replicas", "2"], "--replicas is not for jobs"),
    ([*BOTH, "--time-scale", "2"], "it needs --stretched"),
    ([*BOTH, "--stop-folder", "/no/such"], "there is no such folder"),
    (["--stages", "m:f", "--stretched"], "--stretched and --stop-folder are for stages of jobs"),
    ([*BOTH, "--job", "c", "--turns", "."], "--job names 'c', and .* has the jobs a, b"),
    ([*BOTH, "--job", "a"], "--job needs --turns FOLDER"),
    ([*BOTH, "--job", "a", "--turns", "/no/such"], "--turns /no/such: there is no such folder"),
    ([*BOTH[:2], "--job", "a", "--turns", "."], "torchrun --standalone .* --job a --turns . --stages a=m:f"),
    ([*BOTH, "--checkpoint", "x"], "--checkpoint needs --checkpoint-every N, or --resume"),
    ([*BOTH, "--turns", "."], "--turns is for one job that is started by itself: it needs --job JOB"),
    (["--stages", "m:f", "--job", "a"], "--job and --turns are for stages of jobs"),
    (["--stages", "m:f"], "one model is trained at a time"),
])
def test_mistakes_are_a_sentence(arguments: list[str], message: str, path: str,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if message.startswith("one model"):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    assert re.search(message, refusal("replay", path, *arguments))


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the processes of two jobs found in six runs."""
    folder = tmp_path_factory.mktemp("shared")
    jobs = [data_parallel("a", 1, 20, 30, 50), data_parallel("b", 2, 20, 30, 50)]
    shared = share_jobs(jobs, Question("1:1", rounds=STEPS), SearchOptions(time_limit=3000, effort=2.0))
    assert shared.round.period == 100 and shared.proven
    launch_jobs("tests.support.shared_ranks", folder, plan_of(shared.schedule))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    return found_by(folder)


def losses(found: Any, run: str, job: str) -> list[float]:
    return list(found[run][job]["losses"])


def test_losses_are_those_of_each_alone(found: Any) -> None:
    for job in "ab":
        assert losses(found, "together", job) == found["alone"][job] == losses(found, job, job)
        assert len(losses(found, "together", job)) == STEPS and found["together"][job]["fault"] is None


def test_a_job_that_fails_leaves_the_other_as_it_is(found: Any) -> None:
    failed = found["failed"]
    assert failed["b"]["fault"] == "RuntimeError in step 3: out of memory, as it were (rank 1)"
    assert failed["b"]["losses"] == found["alone"]["b"][:3] and failed["a"]["losses"] == found["alone"]["a"]


def test_a_job_that_is_stopped_leaves_the_other_as_it_is(found: Any) -> None:
    stopped = found["stopped"]
    assert "stopped by" in stopped["b"]["fault"] and stopped["b"]["losses"] == found["alone"]["b"][:4]
    assert stopped["a"]["losses"] == found["alone"]["a"]


def test_a_job_that_ends_leaves_the_other_running_beyond_the_plan(found: Any) -> None:
    assert losses(found, "short", "b") == found["alone"]["b"][:2]
    assert losses(found, "short", "a")[:STEPS] == found["alone"]["a"] and len(losses(found, "short", "a")) == 2 * STEPS


def sums(folder: Path, run: str) -> dict[int, list[str]]:
    """By rank, the sums of all jobs in the order of their turns."""
    return {rank: [f"{block}[{number}]" for _, _, block, number in taken if "/S" in block]
            for rank, taken in turns_taken(folder, run).items()}


def test_every_rank_began_all_sums_in_one_order(folder: Path) -> None:
    for run in ("together", "failed", "stopped", "short"):
        rows = sums(folder, run)
        assert not collective_order_faults(rows) and rows[0] == rows[1]
    assert len(sums(folder, "together")[0]) == 3 * STEPS


def test_together_they_take_no_less_than_planned(found: Any, folder: Path) -> None:
    begun = min(taken[0][0] for taken in turns_taken(folder, "together").values())
    plan, together = load_plan(folder / "plan.json"), found["together"].values()
    predicted = predicted_seconds(plan, job_plans(plan), [JobRun(own["name"], (), steps=own["steps"])
                                                          for own in together], UNIT)
    assert predicted and max(own["ended"] for own in together) - begun >= 0.999 * predicted
