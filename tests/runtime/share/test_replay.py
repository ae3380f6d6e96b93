"""What is said before the ranks of jobs are waited for."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.runtime.share.test_job_plans import plan
from tests.support.shared_ranks import RANKS, STEPS, data_parallel
from weft.cli.main import main
from weft.runtime.plan.plan import save_plan
from weft.runtime.ranks.launch import launch_local


@pytest.fixture
def path(tmp_path: Path) -> str:
    save_plan(plan(data_parallel("a", 1, 2, 3, 5), data_parallel("b", 1, 4, 2, 2)), tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


@pytest.mark.slow
def test_the_command_trains_the_jobs(path: str) -> None:
    where = "tests.support.shared_ranks"
    ended = launch_local(RANKS, [sys.executable, "-m", "weft", "replay", path, "--stages", f"a={where}:first",
                                 "--stages", f"b={where}:second", "--stretched"], timeout=90)
    assert [one.code for one in ended] == [0] * RANKS, ended[0].errors
    told = ended[0].output
    assert f"a: {STEPS} steps\n" in told and f"b: {STEPS} steps\n" in told and told.count("loss per step") == 2
    assert not ended[1].output


BOTH = ["--stages", "a=m:f", "--stages", "b=m:g"]


@pytest.mark.parametrize(("arguments", "message"), [
    (BOTH, "torchrun --standalone --nproc-per-node=2 -m weft replay"),
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
    ([*BOTH, "--checkpoint", "x", "--checkpoint-every", "1"], "not for jobs .* use --processes job"),
    (["--stages", "m:f", "--processes", "job"], "--processes, --job and --turns are for stages of jobs"),
    (["--stages", "m:f"], "one model is trained at a time"),
])
def test_mistakes_are_a_sentence(arguments: list[str], message: str, path: str, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if message.startswith("one model"):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["replay", path, *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
