"""Which points no other beats, against the definition."""

from __future__ import annotations

import random

from weft.text.pareto import non_dominated


def test_exactly_the_points_that_no_other_beats_by_rising_memory() -> None:
    draw = random.Random(3)
    for _ in range(200):
        points = [(float(draw.randint(0, 4)), float(draw.randint(0, 4))) for _ in range(draw.randint(0, 8))]
        beaten = [any(a <= memory and b >= rate and (a, b) != (memory, rate) for a, b in points)
                  for memory, rate in points]
        found = non_dominated(points)
        assert sorted(found) == [i for i, lost in enumerate(beaten) if not lost]
        assert [points[i][0] for i in found] == sorted(points[i][0] for i in found)
