"""Climbs: which periods are tried, and that they end at the least period for cheap refuters."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf
from typing import ClassVar, Self

import pytest

from tests.support.builders import chain, pipeline
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period import Bracket, Periodic
from weft.solver.period.climb import Bisection, Thirds, climb, refute
from weft.solver.period.technique import Refuter, Steps, Task
from weft.solver.ticks import TickProblem


class Below(Refuter):
    """Refutes every period below ``least``, as true of a problem as it is said to be."""

    name: ClassVar[str] = "below"

    def __init__(self, least: int, steps: Steps) -> None:
        self.least, self._steps = least, steps
        self.tried: list[int] = []
        self.levels = 0

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        return None

    def steps(self) -> Steps:
        return self._steps

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        self.tried += periods
        return [period for period in periods if period < self.least]

    def sharpen(self, time: Slice) -> bool:
        self.levels += 1
        return self.levels < 3


def bracket(refuted: int, best: int) -> Bracket:
    instance = TickProblem.of(pipeline(chain(1)))
    return Bracket(instance, Fraction(refuted), Periodic(instance, Fraction(best), (Fraction(0), Fraction(1))))


TIME = Slice(Budget(), inf, inf)


@pytest.mark.parametrize("least", [1001, 1500, 1999, 2000])
def test_bisection_ends_at_the_least_period(least: int) -> None:
    known = bracket(1000, 2000)
    climb(Below(least, Bisection()), known, TIME)
    assert known.refuted == least - 1 and known.counts.of("below").proofs >= (least > 1001)


def test_thirds_come_as_close_as_they_are_told() -> None:
    known, refuter = bracket(1024, 4000), Below(1777, Thirds(1 / 256, 4))
    climb(refuter, known, TIME)
    assert 1777 - 1777 / 256 <= known.refuted < 1777


def test_nothing_is_tried_at_or_above_the_best_nor_when_time_is_over() -> None:
    known, refuter = bracket(1000, 1001), Below(5000, Bisection())
    refute(refuter, known, TIME)
    refute(refuter, bracket(1000, 2000), Slice(Budget(seconds=0.0), inf, inf))
    assert refuter.tried == []


def test_a_refuter_is_sharpened_as_long_as_it_says_so() -> None:
    refuter = Below(1500, Bisection())
    refute(refuter, bracket(1000, 2000), TIME)
    assert refuter.levels == 3
