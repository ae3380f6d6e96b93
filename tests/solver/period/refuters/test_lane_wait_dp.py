"""Cells of the lane-wait refuter: what they count is never more than the waits by the margin, and nearly that much."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import floor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.solver.period.refuters.lane_wait_dp import _rounding, _waited


def margin(*lanes: Sequence[int], along: Sequence[bool] | None = None) -> int:
    weighed: Any = SimpleNamespace(along=along or [True] * len(lanes), weights=list(zip(*lanes, strict=True)))
    return _rounding(weighed)


def excess(weights: Sequence[int], waits: Sequence[Fraction], start: Fraction) -> Fraction:
    """By how much the cells (of length 1) that a lane moves on count more than its waits."""
    at = list(accumulate(waits, initial=start))
    counted = sum(w * (floor(b) - floor(a)) for w, (a, b) in zip(weights, pairwise(at), strict=True))
    return counted - sum((w * x for w, x in zip(weights, waits, strict=True)), Fraction(0))


@pytest.mark.parametrize("weights", [(1,), (3,), (1, 1, 1), (1, 2, 3), (3, 2, 1), (0, 2), (2, 0, 2), (1, 3, 2, 4)])
def test_cells_count_more_than_waits_by_less_than_the_margin_and_by_nearly_that(weights: tuple[int, ...]) -> None:
    draw, most, fine = random.Random(1), Fraction(0), 1000
    for _ in range(3000):
        near = draw.random() < 0.5  # waits of a hair, from a hair below the next cell, or of a cell less two hairs
        start = Fraction(fine - 1, fine) if near else Fraction(draw.randrange(fine), fine)
        waits = [Fraction(draw.choice([0, 1, fine - 1, fine - 2] if near else [draw.randrange(2 * fine)]), fine)
                 for _ in weights]
        most = max(most, excess(weights, waits, start))
        assert excess(weights, waits, start) < margin(weights)
    assert most > margin(weights) - 1


def test_lanes_that_run_back_are_read_from_their_own_start() -> None:
    assert margin((1, 2, 3)) == 3 and margin((3, 2, 1)) == 3
    assert margin((1, 3), along=[False]) == 3 and margin((3, 1), along=[False]) == 1 + 2
    assert margin((3, 1)) == 3 and margin((1, 3)) == 1 + 2
    assert margin((2, 1), (1, 1), along=[True, False]) == 2 + 1


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("weight", [0, 1, 3])
def test_a_wait_moves_on_by_any_number_of_cells_round_the_period(weight: int, later: bool) -> None:
    draw, cells = np.random.default_rng(weight), 6
    costs = draw.integers(0, 9, (3, cells)).astype(np.int16)
    way = 1 if later else -1
    least = [[min(int(row[(cell - way * moved) % cells]) + weight * moved for moved in range(cells))
              for cell in range(cells)] for row in costs]
    assert _waited(costs, 1, weight, later).tolist() == least
