"""DynaPipe's cycles on p uniform stages: what they cost, what they hold, and what memory leaves of them."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, loop, pipeline, v
from weft.solver import baseline, validate


@pytest.mark.parametrize("p", [2, 4, 8])
def test_uniform_stages(p: int) -> None:
    """As long as 1F1B, with up to 2 (p - r) - 1 micro-batches on device r instead of p - r."""
    for m in (p, 2 * p, 4 * p + 1, 500):
        schedule = baseline("dynapipe", pipeline(chain(p)), m)
        assert schedule.makespan == 3 * m + 3 * (p - 1)
        assert all(held <= 2 * (p - rank) - 1 for rank, held in enumerate(schedule.peak_memory))


@pytest.mark.parametrize("cap", [1, 2, 4, 8])
def test_no_more_is_begun_than_memory_takes(cap: int) -> None:
    validate(baseline("dynapipe", pipeline(chain(4), memory=cap), 9))


def test_any_shape() -> None:
    for stages in (v(4), loop(4), [0, 0, 1, 1]):
        for m in (1, 5):
            validate(baseline("dynapipe", pipeline(stages, split=(1, 1), lag=0.5), m))
