"""Steps of the V shape's programme, each against the slow way: waits, and what memory holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.solver.period.refuters.test_v_shape import with_amounts
from tests.support.builders import pipeline, v
from weft.solver.period.refuters.v_shape_dp import VPatterns
from weft.solver.period.structure.v_shape import V
from weft.solver.ticks import TickProblem


@pytest.mark.parametrize("seed", range(4))
def test_the_fewest_extra_periods_are_those_of_all_ways_to_wait(seed: int) -> None:
    """Lanes 1 and 2 take a cell from between them and give it to lane 0's side or lane 3's, lanes 0 and 3 wait by
    themselves; whatever comes to a whole period is one more. All single moves, until nothing gets less."""
    draw, cells = np.random.default_rng(seed), 3
    extra = draw.integers(0, 9, (2 * cells, cells, cells)).astype(np.uint8)
    patterns: Any = SimpleNamespace(cells=cells)
    least = extra.astype(int)
    changed = True
    while changed:
        before = least.copy()
        for y, a, b in np.ndindex(least.shape):
            for other, first, second in ((y, a - 1, b), (y, a, b - 1), (y + 1, a - 1, b), (y + 1, a, b - 1)):
                if other < len(least):
                    wraps = int(first < 0 or second < 0)
                    least[y, a, b] = min(least[y, a, b], least[other, first, second] + wraps)
        changed = bool((least != before).any())
    assert VPatterns._waited(patterns, extra.copy()).tolist() == least.tolist()


@pytest.mark.parametrize("period", [17, 23, 40])
def test_a_level_is_the_least_that_the_cells_leave_open(period: int) -> None:
    """Over all differences of two starts that lie in their cells: what is taken so often at least, what is given back
    so often at most, each for itself. Amounts differ from device to device, and workspace is the taker's own."""
    problem = with_amounts(pipeline(v(2), forward=3, backward=5, memory=50), 50,
                           {"f0": 7, "f1": 4, "f2": 2, "f3": 5}, 3)
    shape = V.of(TickProblem.of(problem))
    assert shape is not None
    patterns = VPatterns(shape, period, 8)
    for row, level in enumerate(shape.levels):
        for taker, workspace in level.takers:
            tables = patterns._level(row, taker, workspace)
            expected = {pair: np.zeros(24, dtype=int) for pair in tables}
            expected[0, 1] += workspace
            for lane, ended, amount in level.changes:
                i, j = (min(lane, taker), max(lane, taker)) if lane != taker else (0, 1)
                for cell in range(24):
                    moved = range(patterns._low[cell], patterns._high[cell] + 1) if lane != taker else [0]
                    later = [(shape.times[row][taker] - shape.times[row][lane]) + (wait if taker > lane else -wait)
                             for wait in moved]
                    expected[i, j][cell] += min(amount * ((apart - ended) // period + 1) for apart in later)
            assert {pair: table.tolist() for pair, table in tables.items()} == {
                pair: table.tolist() for pair, table in expected.items()}
