"""Work in processes: results in order, faults where they belong, workers that end with the block."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from weft.solver.control.parallel import mapped, processes


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


def test_workers_end_with_the_block_whatever_they_do() -> None:
    began = time.monotonic()
    with processes(2, 2) as pool:
        pool.submit(_squared, 1).result()
        pool.submit(time.sleep, 600.0)
    assert time.monotonic() - began < 60 and not multiprocessing.active_children()
