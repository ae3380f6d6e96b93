"""Stable patterns of a V."""

from __future__ import annotations

from itertools import accumulate

import pytest

from weft.solver.baselines.lib.stable_pattern import W_DOWN, stable_patterns


@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_patterns_use_six_slots_and_follow_the_chain(p: int) -> None:
    patterns = list(stable_patterns(p))
    assert len({pattern.slots for pattern in patterns}) == len(patterns)
    for pattern in patterns:
        assert list(pattern.offsets) == sorted(set(pattern.offsets))
        for row in pattern.slots:
            assert sorted(slot % 6 for slot in row) == list(range(6))
            assert row[4] > row[2] and row[5] > row[3]


@pytest.mark.parametrize("p", [3, 4])
def test_peaks_are_those_of_the_repeated_pattern(p: int) -> None:
    for pattern in stable_patterns(p):
        peaks = []
        for row in pattern.slots:
            order = [kind for _, kind in sorted((slot + 6 * m, k) for k, slot in enumerate(row) for m in range(40))]
            peaks.append(max(accumulate((kind <= 1) - (kind >= W_DOWN) for kind in order)))
        assert max(peaks) == pattern.peak
