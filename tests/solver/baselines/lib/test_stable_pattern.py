"""Stable patterns of a V."""

from __future__ import annotations

from itertools import accumulate

import pytest

from weft.solver.baselines.lib.stable_pattern import W_DOWN, held, stable_patterns, with_weights


def _rows(pattern: tuple[int, ...], p: int) -> list[tuple[int, ...]]:
    """Per device the slots of all kinds."""
    ways = [pattern[k * p:(k + 1) * p] for k in range(4)]
    return [with_weights([ways[0][d], ways[1][p - 1 - d], ways[2][d], ways[3][p - 1 - d]]) for d in range(p)]


@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_patterns_use_six_slots_and_follow_the_chain(p: int) -> None:
    patterns = list(stable_patterns(p))
    assert len(set(patterns)) == len(patterns)
    for pattern in patterns:
        assert list(pattern) == sorted(set(pattern))
        for row in _rows(pattern, p):
            assert sorted(slot % 6 for slot in row) == list(range(6))
            assert row[4] > row[2] and row[5] > row[3]


@pytest.mark.parametrize("p", [3, 4])
def test_peaks_are_those_of_the_repeated_pattern(p: int) -> None:
    for pattern in stable_patterns(p):
        for row in _rows(pattern, p):
            order = [kind for _, kind in sorted((slot + 6 * m, k) for k, slot in enumerate(row) for m in range(40))]
            assert max(accumulate((kind <= 1) - (kind >= W_DOWN) for kind in order)) == held(row)
