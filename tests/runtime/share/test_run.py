"""Two trainings in one set of processes: losses as alone, in less time, whatever becomes of the other."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.ranks import launch_forked
from tests.support.shared_ranks import RANKS, STEPS, data_parallel
from weft.app.lib.options import SearchOptions
from weft.app.share.search import Question, share_jobs
from weft.runtime.plan.plan import plan_of, save_plan
from weft.solver.judge.collective_order import collective_order_faults

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What two ranks found in five runs of the same two jobs."""
    folder = tmp_path_factory.mktemp("shared")
    jobs = [data_parallel("a", 1, 20, 30, 50), data_parallel("b", 2, 20, 30, 50)]
    shared = share_jobs(jobs, Question("1:1", rounds=STEPS), SearchOptions(time_limit=20.0, effort=2.0))
    assert shared.round.period == 100 and shared.proven
    save_plan(plan_of(shared.schedule), folder / "plan.json")
    ended = launch_forked(RANKS, [sys.executable, "-m", "tests.support.shared_ranks", str(folder),
                                 str(folder / "plan.json")], timeout=120)
    assert [one.code for one in ended] == [0] * RANKS, ended[0].errors
    return json.loads((folder / "found.json").read_text())


def losses(found: Any, run: str, job: str) -> list[float]:
    return list(found[run]["jobs"][job]["losses"])


def test_losses_are_those_of_each_alone(found: Any) -> None:
    for number, job in enumerate("ab"):
        assert losses(found, "together", job) == found["alone"][number] == losses(found, job, job)
        assert len(losses(found, "together", job)) == STEPS and found["together"]["jobs"][job]["fault"] is None


def test_a_job_that_fails_leaves_the_other_as_it_is(found: Any) -> None:
    failed = found["failed"]["jobs"]
    assert failed["b"]["fault"] == "RuntimeError in step 3: out of memory, as it were (rank 1)"
    assert failed["b"]["losses"] == found["alone"][1][:3] and failed["a"]["losses"] == found["alone"][0]


def test_a_job_that_is_stopped_leaves_the_other_as_it_is(found: Any) -> None:
    stopped = found["stopped"]["jobs"]
    assert "stopped by" in stopped["b"]["fault"] and stopped["b"]["losses"] == found["alone"][1][:4]
    assert stopped["a"]["losses"] == found["alone"][0]


def test_a_job_that_ends_leaves_the_other_running_beyond_the_plan(found: Any) -> None:
    assert losses(found, "short", "b") == found["alone"][1][:2]
    assert losses(found, "short", "a")[:STEPS] == found["alone"][0] and len(losses(found, "short", "a")) == 2 * STEPS


def test_every_rank_began_all_sums_in_one_order(found: Any) -> None:
    for run in ("together", "failed", "stopped", "short"):
        rows = {int(rank): sums for rank, sums in found[run]["sums"].items()}
        assert not collective_order_faults(rows) and rows[0] == rows[1]
    assert len(found["together"]["sums"]["0"]) == 3 * STEPS


def test_together_they_take_no_less_than_planned(found: Any) -> None:
    assert found["together"]["seconds"] >= 0.999 * found["together"]["predicted"]
