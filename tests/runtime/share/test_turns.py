"""Turns: the order of the plan, lap after lap, without the jobs that are over."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from weft.runtime.share.boards import FileBoard
from weft.runtime.share.turns import JobOver, Turns, cells_of

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
