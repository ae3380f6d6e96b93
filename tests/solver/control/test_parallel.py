"""Work in processes: results in order, faults where they belong, workers that end with the block."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.solver.control.parallel import mapped, processes
from weft.solver.control.stopping import SIGNALS


def _squared(number: int) -> tuple[int, int]:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number * number, os.getpid()


def test_results_come_in_order_from_other_processes() -> None:
    found = list(mapped(_squared, [3, 1, 2], 2))
    assert [square for square, _ in found] == [9, 1, 4]
    assert os.getpid() not in {process for _, process in found}
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_comes_out_where_its_result_would(workers: int) -> None:
    found = mapped(_squared, [2, -1], workers)
    assert next(found)[0] == 4
    with pytest.raises(ValueError, match="-1 is negative"):
        next(found)


def test_one_worker_needs_no_process() -> None:
    assert list(mapped(_squared, [5], 8)) == list(mapped(_squared, [5], 1)) == [(25, os.getpid())]
    with processes(1, 10) as pool:
        assert pool.submit(_squared, 2).result() == (4, os.getpid())


def test_all_workers_start_at_once_and_block_signals() -> None:
    with processes(2, 5):
        started = multiprocessing.active_children()
        assert len(started) == 2
        for process in started:
            blocked = re.search(r"SigBlk:\t(\w+)", Path(f"/proc/{process.pid}/status").read_text())
            assert blocked and all(int(blocked[1], 16) >> number - 1 & 1 for number in SIGNALS)


@pytest.mark.parametrize(("script", "shown"), [
    ("from weft.solver.control.parallel import processes\nprint('here')\n"
     "with processes(2, 2) as pool:\n    print(pool.submit(abs, -3).result())\n", "here\n3\n"),
    ("from weft.solver.control.parallel import mapped\ndef twice(n):\n    return 2 * n\n"
     "if __name__ == '__main__':\n    print(*mapped(twice, [1, 2], 2))\n", "2 4\n"),
], ids=["workers do not run one without a guard", "functions of a guarded one can be mapped"])
def test_scripts_start_workers(tmp_path: Path, script: str, shown: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(script)
    found = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == (shown, "")


def test_workers_end_with_the_block_whatever_they_do() -> None:
    began = time.monotonic()
    with processes(2, 2) as pool:
        pool.submit(_squared, 1).result()
        pool.submit(time.sleep, 600.0)
    assert time.monotonic() - began < 60 and not multiprocessing.active_children()
