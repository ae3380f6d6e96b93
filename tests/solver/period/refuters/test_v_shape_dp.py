"""One step of the V shape's programme: waits move lanes on from cell to cell, and round the period."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.solver.period.refuters.v_shape_dp import VPatterns


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
