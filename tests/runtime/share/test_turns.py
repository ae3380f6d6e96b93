"""Turns: the order of the plan, lap after lap, without the jobs that are over.

Turns of several processes: one order, whoever is killed and whoever never comes.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.turn_takers import LAPS, turns
from weft.runtime.share.turns import FileBoard, JobOver, Turns, cells_of

ORDER = [("a", "F", 0), ("b", "F", 0), ("a", "F", 1), ("b", "F", 1)]


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Turns]:
    orders, counts = {0: ORDER, 1: ORDER[::-1]}, {"a": 2, "b": 2}
    board = FileBoard(tmp_path / "rank0.turns", cells_of(orders, list(counts)), "a plan", list(counts), math.inf)
    with closing(board):
        yield Turns(orders, counts, board)


def test_jobs_take_turns_and_laps_go_on_counting(found: Turns) -> None:
    for lap in range(3):
        for job, block, step in ORDER:
            found.take((job, block, 2 * lap + step), [0])
            found.give([0])


def test_what_is_over_is_skipped_and_takes_no_turn(found: Turns) -> None:
    found.end("a", [0, 1])
    found.take(("b", "F", 0), [0])
    found.give([0])
    found.take(("b", "F", 1), [0, 1])
    with pytest.raises(JobOver):
        found.take(("a", "F", 1), [1])


def test_a_job_that_is_over_while_it_has_the_turn_keeps_it_until_it_gives_it_back(found: Turns) -> None:
    order = []
    found.take(("a", "F", 0), [0])
    found.end("a", [0])

    def run() -> None:
        for step in range(2):
            found.take(("b", "F", step), [0])
            order.append(("b", step))
            found.give([0])

    other = threading.Thread(target=run)
    other.start()
    other.join(0.1)
    order.append(("a", 0))
    found.give([0])
    other.join(300)
    assert order == [("a", 0), ("b", 0), ("b", 1)]


#: Which jobs come, and at which of their turns they are killed.
CASES = ([("a", None), ("b", None), ("c", None)], [("c", None), ("a", 3), ("b", None)], [("b", None), ("c", 0)])


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[int], list[str]]]:
    done = subprocess.run([sys.executable, "-m", "tests.support.turn_takers", str(tmp_path_factory.mktemp("turns")),
                           json.dumps(CASES)], capture_output=True, text=True, timeout=600, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_processes_take_turns_in_the_order_of_the_plan(taken: list[tuple[list[int], list[str]]]) -> None:
    codes, order = taken[0]
    assert codes == [0, 0, 0]
    assert order == [turn for lap in range(LAPS) for turn in (f"a{2 * lap}", f"b{lap}", f"c{lap}", f"a{2 * lap + 1}")]


def test_one_that_is_killed_with_the_turn_leaves_it_to_the_others(taken: list[tuple[list[int], list[str]]]) -> None:
    codes, order = taken[1]
    assert codes == [0, -9, 0]
    rest = [turn for lap in range(2, LAPS) for turn in (f"b{lap}", f"c{lap}")]
    assert order == ["a0", "b0", "c0", "a1", "a2", "b1", "c1", "a3", *rest]


def test_one_that_never_comes_is_not_waited_for(taken: list[tuple[list[int], list[str]]]) -> None:
    codes, order = taken[2]
    assert codes == [0, -9]
    assert order == ["b0", "c0", *(f"b{lap}" for lap in range(1, LAPS))]


def test_a_folder_is_of_one_plan_and_each_job_comes_once(tmp_path: Path) -> None:
    made, board = turns(tmp_path)
    assert made.come("a") and not made.come("a")
    board.close()
    with pytest.raises(ValueError, match="these turns are of another plan: give each run a folder of its own"):
        FileBoard(tmp_path / "rank0.turns", 8, "another", ["a"], 1.0)


def test_who_waits_for_a_turn_that_does_not_move_says_for_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                                               ) -> None:
    board = FileBoard(tmp_path / "rank0.turns", 8, "a plan", ["a", "b"], 1.0, report_after=0.02)
    board.hold(1)
    looks = []

    def blockers() -> set[int]:
        looks.append(0)
        if len(looks) > 2:
            board.cells[0] += 1  # at last
        return {0}

    with board.locked():
        assert board.wait(blockers) == ()
    board.close()
    assert capsys.readouterr().err.startswith("weft: rank0: job b has waited for 0.02 s for the turn of job a: its "
                                              "process is at something long, stopped, or not there yet\n")


def test_a_board_that_a_stopped_process_holds_is_not_waited_for_in_silence(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = FileBoard(tmp_path / "rank0.turns", 8, "a plan", ["a"], 1.0, report_after=0.02, within=0.1)
    holder = os.open(board.path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(TimeoutError, match="does not let go of it"), board.locked():
        pass
    os.close(holder)
    with board.locked():
        board.cells[0] = 1
    board.close()
    assert "has waited for 0.02 s for a process to let go of" in capsys.readouterr().err


def test_a_board_whose_maker_was_killed_before_it_was_whole_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "rank0.turns").write_bytes(bytes(32 + 8 * 8))
    FileBoard(tmp_path / "rank0.turns", 8, "a plan", ["a"], 1.0).close()
    assert (tmp_path / "rank0.turns").read_bytes().startswith(b"a plan")
