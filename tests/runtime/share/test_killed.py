"""Jobs in processes of their own: one that is killed ends, the others go on, bit for bit; and it goes on from its last
checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.share.test_mixes import mixed
from tests.support.ranks import launch_forked
from tests.support.shared_kills import PROCESSES
from tests.support.shared_mixes import STEPS
from weft.runtime.plan.plan import save_plan
from weft.runtime.ranks.launch import Ended, free_port

pytestmark = pytest.mark.slow


def run(folder: Path, victim: str = "", *options: str) -> tuple[dict[str, Any], list[Ended]]:
    """By job what it came to, where it came to an end, and how each process ended."""
    save_plan(mixed(), folder / "plan.json")
    turns = folder / f"turns of {victim or 'nobody'} {' '.join(options)[-8:].strip('-')}"
    turns.mkdir()
    ended = launch_forked(len(PROCESSES), [sys.executable, "-m", "tests.support.shared_kills", str(turns),
                                           str(folder / "plan.json"), victim, *(str(free_port()) for _ in range(3)),
                                           *options])
    found = {job: json.loads((turns / f"{job}.result").read_text()) for job in ("pipeline", "data", "answers")
             if (turns / f"{job}.result").exists()}
    return found, ended


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found, ended = run(tmp_path_factory.mktemp("undisturbed"))
    assert [one.code for one in ended] == [0] * len(PROCESSES), [one.errors for one in ended]
    assert {job: own["steps"] for job, own in found.items()} == dict.fromkeys(("pipeline", "data", "answers"), STEPS)
    return found


@pytest.mark.parametrize("victim", ["pipeline:1", "data:0"])
def test_a_job_that_is_killed_ends_alone(victim: str, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    found, ended = run(tmp_path, victim, "--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "1")
    job = victim.partition(":")[0]
    codes = {process: one.code for process, one in zip(PROCESSES, ended, strict=True)}
    assert codes.pop((job, int(victim[-1]))) == -9
    assert all(code == (1 if whose == job else 0) for (whose, _), code in codes.items()), [one.errors for one in ended]
    assert job not in found
    for other in {"pipeline", "data"} - {job}:
        assert found[other]["losses"] == undisturbed[other]["losses"] and found[other]["fault"] is None
    assert found["answers"]["steps"] == STEPS

    resumed, ended = run(tmp_path, "", "--checkpoint", str(tmp_path / "saved"), "--resume")
    assert not any(one.code for one in ended), "".join(one.errors for one in ended)
    first = resumed[job]["first"]
    assert first >= 1 and resumed[job]["losses"] == undisturbed[job]["losses"][first:]
    assert all(resumed[other]["steps"] == 0 for other in {"pipeline", "data", "answers"} - {job})
