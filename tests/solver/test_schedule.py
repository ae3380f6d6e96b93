"""A schedule as text: one line, however many operations it has."""

from __future__ import annotations

from dataclasses import replace

from tests.support.tessel_shapes import shape
from weft.solver.baselines import baseline


def test_a_schedule_is_one_short_line() -> None:
    schedule = baseline("1f1b", shape("chain", 4, 4), 200)
    text = str(schedule)
    assert "200 micro-batches on 4 devices, makespan" in text and "no lower bound" in text
    assert len(text) < 200 and "\n" not in text and text in repr(schedule) and len(repr(schedule)) < 220
    assert "proven optimal" in str(replace(schedule, makespan_bound=schedule.makespan))
