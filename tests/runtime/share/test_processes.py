"""What starts the processes of all jobs, on processes that only write what real ones would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.runtime.share.test_stages_plan import plan
from tests.support.shared_ranks import data_parallel
from weft.cli.commands.replay import _jobs
from weft.cli.main import main
from weft.runtime import ReplayError, save_plan
from weft.runtime.ranks.children import Start, children
from weft.runtime.ranks.leftovers import _owner
from weft.runtime.share import processes
from weft.runtime.share.processes import JobWorker, replay_in_processes
from weft.runtime.share.replay import SharedOptions

Running = AbstractContextManager[list[subprocess.Popen[bytes]]]
BOTH = {"a": "m:f", "b": "m:g"}
#: A process that writes two losses, and then ends as its job's is to.
BE = """
import json, os, sys, time
folder, job, end = sys.argv[1:]
number = os.environ["RANK"]
with open(f"{folder}/{job}.{number}.losses", "w") as file:
    for batch in range(2 + (number == "1")):
        print(json.dumps([batch, batch + int(number)]), file=file)
if end == "well" and number == "0":
    with open(f"{folder}/{job}.result", "w") as file:
        json.dump({"name": job, "losses": [1.0, 2.0], "fault": None, "steps": 2, "first": 0, "seconds": 0.5}, file)
if end == "waits":
    time.sleep(60)
raise SystemExit(int(end == "fails" and number == "1") * 7)
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    save_plan(plan(data_parallel("a", 1, 2, 3, 5), data_parallel("b", 1, 4, 2, 2)), tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


def ends(monkeypatch: pytest.MonkeyPatch, **how: str) -> None:
    """From now on the processes of each job end so."""
    monkeypatch.setattr(processes, "_command", lambda name, job, options: [
        sys.executable, "-c", BE, str(options.turns), job, how[job]])


def test_what_a_job_says_and_what_is_left_of_one_that_failed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, a="well", b="fails")
    a, b = replay_in_processes(path, SharedOptions(BOTH)).jobs
    assert (a.losses, a.fault, a.steps, a.seconds) == ((1.0, 2.0), None, 2, 0.5)
    assert b.fault == "rank 1 ended with exit code 7"
    assert (b.losses, b.steps) == ((0.5, 1.5), 2)  # the mean over ranks, of batches that both made


def test_no_process_is_left_where_something_goes_wrong(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, a="waits", b="waits")
    started: list[JobWorker] = []

    def fail(workers: Sequence[JobWorker], folder: Path) -> None:
        started.extend(workers)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay_in_processes(path, SharedOptions(BOTH), beside=fail)
    assert len(started) == 4 and all(worker.process.poll() == -9 for worker in started)


def test_the_others_of_a_killed_one_s_job_are_ended_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, a="well", b="waits")
    found = replay_in_processes(path, SharedOptions(BOTH, timeout=1.0), beside=lambda workers, folder:
                                workers[3].process.send_signal(signal.SIGKILL))
    assert [run.fault for run in found.jobs] == [None, "rank 1 was ended by SIGKILL"]


def test_one_that_is_stopped_is_ended_and_its_turns_come_free(
        path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ends(monkeypatch, a="well", b="waits")

    def stop(workers: Sequence[JobWorker], folder: Path) -> None:
        for worker in workers[2:]:
            worker.process.send_signal(signal.SIGSTOP)

    found = replay_in_processes(path, SharedOptions(BOTH, timeout=0.2), beside=stop)
    assert [run.fault for run in found.jobs] in ([None, f"rank {rank} was ended by SIGKILL"] for rank in (0, 1))
    said = capsys.readouterr().err
    assert "weft: rank 1 of job b is stopped (SIGSTOP): it is ended after 0.1 s" in said
    assert "weft: rank 1 of job b was stopped for 0.1 s: it is ended" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_one_that_starts_leaves_no_process_and_no_folder(
        number: signal.Signals, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, a="waits", b="waits")
    found: list[JobWorker] = []
    folders: list[Path] = []

    def end(workers: Sequence[JobWorker], folder: Path) -> None:
        found.extend(workers)
        folders.append(folder)
        signal.raise_signal(number)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        replay_in_processes(path, SharedOptions(BOTH), beside=end)
    assert all(worker.process.poll() == -9 for worker in found) and not folders[0].exists()
    assert signal.getsignal(number) == before


def test_the_command_says_by_its_exit_status_whether_all_jobs_ended_well(
        path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["replay", path, "--stages", "a=m:f", "--stages", "b=m:g"]
    ends(monkeypatch, a="well", b="well")
    assert main(command) == 0
    ends(monkeypatch, a="well", b="fails")
    assert main(command) == 1
    assert "b: 2 steps, then rank 1 ended with exit code 7" in capsys.readouterr().out


def test_what_each_process_is_started_with() -> None:
    options = SharedOptions(BOTH, turns="/t", stretched=True, time_scale=0.5, stop_folder="/s", checkpoint="/c",
                            checkpoint_every=3, resume=True, allow_unsplit=True)
    command = processes._command("plan.json", "b", options)
    assert command[1:] == ["-m", "weft", "replay", "plan.json", "--job", "b", "--turns", "/t", "--stages", "b=m:g",
                           "--timeout", "60.0", "--stretched", "--time-scale", "0.5", "--stop-folder", "/s",
                           "--checkpoint", "/c", "--checkpoint-every", "3", "--resume", "--allow-unsplit"]
    assert json.dumps(command)


@pytest.mark.parametrize(("options", "message"), [
    (SharedOptions(BOTH, turns="."), "--turns is for one job that is started by itself: it needs --job JOB"),
    (SharedOptions(BOTH, job="a"), "--job needs --turns FOLDER"),
    (SharedOptions(BOTH, resume=True), "need --checkpoint FOLDER"),
    (SharedOptions({"a": "m:f"}), "says nothing of 'b'"),
])
def test_mistakes(path: str, options: SharedOptions, message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        replay_in_processes(path, options)


def test_it_starts_its_processes_itself(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ReplayError, match="call it without torchrun"):
        replay_in_processes(path, SharedOptions(BOTH))


def test_a_folder_of_stages_may_have_the_sign_that_parts_a_job_from_them(tmp_path: Path) -> None:
    file = tmp_path / "lr=1" / "make.py"
    file.parent.mkdir()
    file.touch()
    assert _jobs([f"a={file}:make", "b=c=my.gpt:make"]) == {"a": f"{file}:make", "b=c": "my.gpt:make"}
    with pytest.raises(ValueError, match="once for each job"):
        _jobs(["a=m:f", "a=m:g"])


def test_the_folder_of_turns_carries_its_owner_and_goes_with_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stayed in /dev/shm after ``kill -9`` of the process that starts the others."""
    ends(monkeypatch, a="well", b="well")
    given: list[Path] = []

    def noted(starts: Sequence[Start], folders: Sequence[Path]) -> Running:
        given.extend(folders)
        return children(starts, folders)

    monkeypatch.setattr(processes, "children", noted)
    replay_in_processes(path, SharedOptions(BOTH))
    assert len(given) == 1 and given[0].name.startswith(f"weft-turns-{_owner()}-") and not given[0].exists()
