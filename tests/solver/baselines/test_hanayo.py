"""Waves of any number of ways along the devices, with split backwards, and in less memory."""

from __future__ import annotations

import pytest

from tests.support.builders import pipeline, valid, waves
from weft.solver.baselines import baseline


def ways(p: int, count: int) -> list[int]:
    return waves(p, count)[:count * p]


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("count", [3, 5])
def test_an_odd_number_of_ways(p: int, count: int) -> None:
    """The paper's share for w waves, (2p - 2) / (3pw + p - 1), holds with w = count / 2."""
    schedule = baseline("hanayo", pipeline(ways(p, count)), p)
    busy = 3 * p * count
    assert (schedule.makespan - busy) / schedule.makespan <= (2 * p - 2) / (3 * p * count / 2 + p - 1) + 1e-12
    assert max(schedule.peak_memory) <= p * count


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_weight_gradients_fill_what_would_be_idle(count: int) -> None:
    """Idle (p - 1)(f + i - w), within the activations of p micro-batches, for any number of micro-batches from p on."""
    for m in (8, 16, 21):
        schedule = baseline("hanayo", pipeline(ways(8, count), split=(1, 1)), m)
        assert schedule.makespan == 3 * m * count + 7
        assert max(schedule.peak_memory) <= 8 * count


@pytest.mark.parametrize("split", [None, (1, 1)])
def test_fewer_in_flight_where_memory_is_short(split: tuple[int, int] | None) -> None:
    spans = []
    for cap in (16, 12, 8, 4):
        schedule = valid(baseline("hanayo", pipeline(ways(4, 4), split=split, memory=cap), 9))
        spans.append(schedule.makespan)
    assert spans == sorted(spans)


def test_long_runs_keep_the_pace_of_short_ones() -> None:
    for split in (None, (1, 1)):
        spans = [baseline("hanayo", pipeline(ways(4, 3), split=split), m).makespan - 9 * m for m in (64, 640)]
        assert spans[1] <= spans[0] + 9
