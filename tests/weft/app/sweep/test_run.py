"""How sweeps run: executors, interruption, and resumption from the cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, pipeline, refusal, shows, v, written
from tests.support.sweeps import EFFORT, sweep, uniform
from weft.app.sweep.result import Sweep
from weft.app.sweep.run import SweepProgress
from weft.solver.io.problem_files import save_problem

# -- executors ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected() -> Sweep:
    return sweep(memory=[1, 2, 3], micro_batches=[3, 5])


def test_a_process_pool_gives_the_same_rows(expected: Sweep) -> None:
    assert sweep(memory=[1, 2, 3], micro_batches=[3, 5], workers=2).rows == expected.rows


def test_a_block_problem_has_no_samples_in_its_title(expected: Sweep) -> None:
    assert "None" not in str(expected)


def test_any_executor_gives_the_same_rows_and_stays_open(expected: Sweep) -> None:
    with ThreadPoolExecutor(2) as threads:
        assert sweep(memory=[1, 2, 3], micro_batches=[3, 5], executor=threads).rows == expected.rows
        assert threads.submit(int).result() == 0


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_rows(expected: Sweep, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "problem.json"
    save_problem(uniform(), path)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=True, host="127.0.0.1",
                                  dashboard_address=None, silence_logs=50) as cluster:
        told = shows("sweep", path, "--memory", "1,2,3", "-n", "3,5", "--effort", EFFORT, "--no-cache", "--dask",
                     cluster.scheduler_address, "--json", "--quiet")
    assert json.loads(told)["rows"] == json.loads(json.dumps(expected.to_json()))["rows"]


def test_no_dask_scheduler_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "problem.json"
    save_problem(uniform(), path)
    printed = refusal("sweep", path, "-n", "3", "--dask", "no address at all")
    assert printed.startswith("weft: no Dask scheduler answers at 'no address at all'")
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'weft[dask]'" in refusal("sweep", path, "-n", "3", "--dask", "127.0.0.1:1")
    assert distributed


def test_a_worker_that_dies_is_one_sentence(tmp_path: Path) -> None:
    from concurrent.futures import BrokenExecutor

    class Broken(Executor):
        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(BrokenExecutor("gone"))
            return future

    with pytest.raises(OSError, match=r"a worker process ended unexpectedly .* goes on from there"):
        sweep(executor=Broken(), cache=tmp_path)


# -- interruption and the cache -------------------------------------------------------------------------------------


def test_an_interrupted_sweep_goes_on_from_the_cache(tmp_path: Path, expected: Sweep) -> None:
    def interrupt(progress: SweepProgress) -> None:
        if progress.done == 4:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"memory": [1, 2, 3], "micro_batches": [3, 5], "cache": tmp_path}
    first = sweep(**options, on_progress=interrupt)
    assert first.interrupted
    assert first.rows == expected.rows[:4]
    assert len(first.unsolved) == 2
    assert "interrupted: 2 of 6 points are not solved" in str(first)
    second = sweep(**options)
    assert (second.cached, second.rows) == (4, expected.rows)
    third = sweep(**options)
    assert (third.cached, third.rows) == (len(expected.rows), expected.rows)


def test_an_interrupt_before_any_row_is_an_interrupt() -> None:
    class Interrupted(Executor):
        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(executor=Interrupted())


def test_an_interrupt_that_reaches_the_workers_keeps_what_others_have_done(expected: Sweep) -> None:
    class Interrupted(Executor):
        """Solves two points, leaves two waiting, and the fifth is interrupted: nobody has taken a result so far."""

        count = 0

        def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
            self.count += 1
            future: Future[Any] = Future()
            if self.count <= 2:
                future.set_result(function(*arguments))
            elif self.count == 5:
                future.set_exception(KeyboardInterrupt())
            return future

    found = sweep(memory=[1, 2, 3], micro_batches=[3, 5], executor=Interrupted())
    assert found.rows == expected.rows[:2]
    assert len(found.unsolved) == 4


def test_a_damaged_entry_is_solved_again(tmp_path: Path) -> None:
    first = sweep(memory=[1, 2], cache=tmp_path, refine=False)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[:1000])
    second = sweep(memory=[1, 2], cache=tmp_path, refine=False)
    assert (second.cached, second.rows) == (1, first.rows)
    assert sweep(memory=[1, 2], cache=tmp_path, refine=False).cached == 2


def test_results_outlive_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    occupied = written(tmp_path / "file", "")
    found = sweep(memory=[1, 2], cache=occupied, refine=False)
    assert len(found.rows) == 2
    assert found.notes and found.notes[0].startswith(f"not cached: {occupied}")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_on_the_command_line_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    path, output = tmp_path / "problem.json", tmp_path / "out.json"
    # Two points that end at once, then one whose search goes on until its time is up.
    save_problem(pipeline(v(4), memory=4, forward=1.37, split=(1.11, 0.73)), path)
    command = [sys.executable, "-m", "weft", "sweep", str(path), "-n", "1,2,40", "--time-limit", "300",
               "--workers", "2", "--cache", str(tmp_path / "cache"), "-o", str(output), "--no-refine"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               cwd=ROOT)
    assert process.stderr is not None
    lines = list(islice((line for line in process.stderr if "nothing found yet" not in line), 2))
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=600)  # its workers hold the same pipes: until they are gone, too
    assert process.returncode == 130, (lines, printed)
    assert "interrupted: 1 of 3 points are not solved" in printed
    value = json.loads(output.read_text())
    assert [row["point"]["micro_batches"] for row in value["rows"]] == [1, 2]
    assert len(list((tmp_path / "cache").iterdir())) == 2
