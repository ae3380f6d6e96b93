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


def test_peaks_with_static_memory_are_those_of_the_problem_where_no_entry_says_them() -> None:
    plain = shape("chain", 2, 2)
    problem = replace(plain, devices=tuple(replace(device, static=number + 5)
                                           for number, device in enumerate(plain.devices)))
    schedule = baseline("1f1b", problem, 2)
    assert schedule.peak_with_static == tuple(peak + number + 5 for number, peak in enumerate(schedule.peak_memory))
    assert schedule.with_solver(static_memory=[1, 1]).peak_with_static == tuple(
        peak + 1 for peak in schedule.peak_memory)
