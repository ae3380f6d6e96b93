"""The schedules that stable patterns are reordered to."""

from __future__ import annotations

import pytest

from tests.support.builders import pipeline, v
from weft.solver.baselines.lib.building_block import StepChain
from weft.solver.baselines.lib.stable_pattern import KINDS, stable_patterns
from weft.solver.baselines.rivals.reordering import reordered
from weft.solver.baselines.rivals.weights_anew import WEIGHT, Rule, in_order
from weft.solver.pipeline import Pipeline


def expected(p: int, m: int, held: int) -> int:
    """The longest span that the authors expect, in slots, with memory for ``held`` stages' activations a device."""
    return 6 * m + max(0, 3 * p - 1 - 3 * held + max(3 * p, p + 1 + 2 * ((held + 1) // 2)))


@pytest.mark.parametrize(("p", "m", "held"), [
    (4, 8, 4), (4, 8, 5), (4, 8, 6), (4, 30, 6), (8, 16, 8), (8, 16, 9), (8, 16, 10), (8, 6, 12), (16, 32, 12),
    (16, 32, 14), (16, 16, 16)])
def test_the_bubble_that_the_authors_expect(p: int, m: int, held: int) -> None:
    """Reordered patterns reach it on equal durations, at every memory."""
    chain = StepChain.uniform(Pipeline.of(pipeline(v(p), split=(1, 1))))
    best = float("inf")
    for pattern in stable_patterns(p):
        if pattern.peak not in (held - 1, held) or best <= expected(p, m, held):
            continue
        kinds = reordered(pattern, m, held)
        if kinds is None:
            continue
        assert all(row.count(kind) == m for row in kinds for kind in KINDS)
        rows = [[(d, 2 * p - 1 - d, 2 * p + d, 4 * p - 1 - d, WEIGHT, WEIGHT)[kind] for kind in row]
                for d, row in enumerate(kinds)]
        made = in_order(chain, rows, m, Rule.AS_GIVEN, [held] * p)
        assert made is not None, "it runs, and in its memory"
        best = min(best, made.makespan)
    assert best <= expected(p, m, held)
