"""Jobs and classes through the front door, where the least is known; every command on them:
:mod:`tests.end_to_end.test_grid`."""

from __future__ import annotations

import pytest

import weft
from tests.support.kinds_of_input import classes, jobs


def test_jobs_share_a_gpu_and_its_network() -> None:
    found = weft.solve(jobs(), micro_batches={"one": 6, "two": 6}, objective="rate", effort=1.0)
    assert found.value == found.value_bound == 12 and found.rounds is not None and found.rounds.run.rounds == 6


@pytest.mark.slow
def test_the_order_of_micro_batches_is_searched_where_it_is_free() -> None:
    run = ["short"] * 4 + ["long"] * 2
    given = weft.solve(classes(3), micro_batches=run, effort=1.0)
    free = weft.solve(classes(3), micro_batches=run, effort=2.0, reorder=True)
    assert (given.makespan, given.gap, free.makespan, free.gap) == (48, 0, 43, 0)
    assert free.rounds is not None and sorted(map(str, free.rounds.run.classes[None])) == sorted(run)
