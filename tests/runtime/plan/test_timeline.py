"""Timelines and their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.plans import plan_of_two
from weft.runtime.plan.timeline import Measured, Timeline, compare, load_timeline, save_timeline, timeline_from_json
from weft.solver.io.entries import FormatError


def test_a_timeline_file_gives_the_same_timeline_back_and_is_held_against_its_plan(tmp_path: Path) -> None:
    plan = plan_of_two()
    timeline = Timeline.of(plan, 0.01, [Measured("f1", 0, 1, 7.5, 7.6), Measured("f0", 0, 0, 7.25, 7.375)])
    assert timeline.operations[0] == Measured("f0", 0, 0, 0.0, 0.125)
    save_timeline(timeline, tmp_path / "timeline.json")
    assert load_timeline(tmp_path / "timeline.json") == timeline
    comparison = compare(timeline, plan)
    assert comparison.predicted == pytest.approx(plan.makespan * 0.01)
    assert comparison.ratio == pytest.approx(0.35 / (plan.makespan * 0.01))
    with pytest.raises(ValueError, match="was not measured on this plan"):
        compare(timeline, replace(plan, micro_batches=3))


def test_a_timeline_that_ends_before_it_starts_is_refused() -> None:
    value = {"format": "weft.timeline/1", "plan": "", "name": "", "seconds_per_unit": 1,
             "operations": [{"block": "f0", "micro_batch": 0, "rank": 0, "start": 2, "end": 1}]}
    with pytest.raises(FormatError, match=r"operations\[0\]: start is 2.0 and end 1.0"):
        timeline_from_json(value)


@pytest.mark.parametrize("unit", [0, 1e-200, 1e90])
def test_a_unit_of_time_that_times_cannot_be_counted_in_is_refused(unit: float) -> None:
    value = {"format": "weft.timeline/1", "plan": "", "name": "", "seconds_per_unit": unit, "operations": []}
    with pytest.raises(FormatError, match=r"seconds_per_unit is .*, it must be from 1e-60 to 1e\+60"):
        timeline_from_json(value)
