"""Where times stand on an axis whose middle is cut out."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, pipeline
from weft.figures.axis import TimeAxis, time_axis
from weft.solver.baselines import baseline
from weft.text.units import Unit


def test_a_cut_axis_keeps_order_and_scale() -> None:
    axis = TimeAxis(((0.0, 10.0), (90.0, 100.0)), 226.0)
    assert axis.per_pixel == 0.1
    assert [axis.place(time) for time in (0.0, 10.0, 50.0, 90.0, 100.0)] == pytest.approx([0, 10, None, 12.6, 22.6])
    assert list(axis.clip(5.0, 95.0)) == [(5.0, 10.0), pytest.approx((12.6, 17.6))]
    assert [label for _, label in axis.ticks(Unit("s", 1))] == ["0", "5", "10", "90", "95", "100"]


def test_the_axis_holds_the_ends_of_both_schedules() -> None:
    problem = pipeline(chain(2))
    fast, slow = baseline("1f1b", problem, 500), baseline("gpipe", pipeline(chain(2), forward=2), 500)
    axis = time_axis([slow, fast], slow.makespan, "auto", 960)
    assert axis.place(fast.makespan) is not None
    assert axis.place(slow.makespan) is not None
    assert len(axis.parts) == 3
