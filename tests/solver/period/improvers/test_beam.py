"""Beams: what they build is a steady state of the period that was asked for, and fits; long pipelines are done in one.

Where the optimum is known, some beam reaches it: they are told nothing of a schedule.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import chain, judged, pipeline, v
from tests.support.examples import examples
from tests.support.strategies import problems
from weft.models.zoo.tessel_shapes import shape
from weft.solver.cpsat.budget import Budget
from weft.solver.period.improvers.beam import AtPeriod, Partial, improve_by_beam, suits_beam
from weft.solver.period.improvers.beam_expansion import EARLY, FREE, LATE, fits, place
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import Periodic
from weft.solver.period.search import find_period
from weft.solver.problem import Problem
from weft.solver.relations.min_dist import least_distances, least_open_period, takes_before_giving
from weft.solver.ticks import TickProblem


def beam(instance: TickProblem, period: int, width: int = 20, seed: int = 0) -> Periodic | None:
    lags, devices = least_distances(instance, period), range(len(instance.capacity))
    if lags is None:
        return None
    return Partial(AtPeriod.of(instance, period, lags), devices, width, np.random.default_rng(seed)).run(Budget())


@pytest.mark.parametrize("memory", [2, 4, 8])
def test_a_chain_of_equal_stages(memory: int) -> None:
    """Eight stages, F = 1 and B = 2, ``memory`` micro-batches at once: the round trip of 24 over them, at least 3."""
    instance = TickProblem.of(pipeline(chain(8), forward=1, backward=2, memory=memory))
    found = beam(instance, max(3, 24 // memory))
    assert found is not None and found.period == max(3, 24 // memory)


def test_weight_gradients_fill_the_gaps() -> None:
    found = beam(TickProblem.of(pipeline(v(4), forward=1, split=(1, 1), memory=8)), 6)
    assert found is not None and found.period == 6


@pytest.mark.parametrize("kind", ["m", "nn", "k"])
def test_blocks_on_all_devices(kind: str) -> None:
    instance = TickProblem.of(shape(kind, 4, 6))
    start = one_at_a_time(instance)
    best = find_period(instance, start, Budget(), deterministic=1.0).best.period
    found = [one for seed in range(10) if (one := beam(instance, int(best * 1.25), seed=seed)) is not None]
    assert found and all(best <= one.period <= best * 1.25 for one in found)


@settings(max_examples=examples(60), deadline=None)
@given(problems(balanced=True, capacities=True, links=False), st.integers(0, 3), st.integers(0, 9))
def test_what_a_beam_builds_is_valid_when_repeated(problem: Problem, share: int, seed: int) -> None:
    instance = TickProblem.of(problem)
    if not (instance.balanced and takes_before_giving(instance)):
        return
    longest = sum(instance.durations) + sum(arc.lag for arc in instance.arcs)
    least = least_open_period(instance, longest)
    period = max(1, least + (longest - least) * share // 3)
    found = beam(instance, period, width=5, seed=seed)
    if found is not None:
        assert found.period <= period
        judged(found, 2)


def test_what_beams_are_asked_for() -> None:
    """Neither blocks that hold several devices nor more than a few on one."""
    assert suits_beam(TickProblem.of(pipeline(v(4), memory=8)))
    assert not suits_beam(TickProblem.of(shape("k", 4, 6)))
    assert not suits_beam(TickProblem.of(pipeline([0] * 8, memory=8)))


def test_better_ones_are_said_and_none_is_longer_than_the_start() -> None:
    instance = TickProblem.of(pipeline(v(6), forward=3, backward=5, memory=9))
    start = one_at_a_time(instance)
    heard: list[Periodic] = []
    improve_by_beam(start, instance.heaviest_load, Budget(), heard.append, np.random.default_rng(0),
                    deterministic=1.0, width=20)
    periods = [found.period for found in heard]
    assert periods and periods == sorted(periods, reverse=True) and periods[0] < start.period


def test_nothing_is_looked_for_when_the_time_is_over() -> None:
    instance = TickProblem.of(pipeline(v(6), forward=3, backward=5, memory=9))
    improve_by_beam(one_at_a_time(instance), 1, Budget(seconds=0.0), lambda _: pytest.fail("found one"),
                    np.random.default_rng(0), deterministic=1.0, width=20)


# -- one device ----------------------------------------------------------------------------------------------------


def two_blocks(wishes: tuple[int, int], latest: int = 100) -> list[list[int]]:
    """Starts of blocks of 3 and 4 ticks at period 10; both would like to start at 0, or to end their window."""
    instance = TickProblem.of(pipeline(chain(1), forward=3, backward=4))
    lags = np.array([[0, -1000], [-1000, 0]])
    windows = np.zeros((200, 2), dtype=np.int64)
    _, starts = place(instance, 10, lags, [0, 1], wishes, (windows, windows + latest), np.random.default_rng(0))
    return [[int(start) for start in row] for row in np.unique(starts, axis=0)]


def test_who_would_like_to_be_early_is_moved_by_the_other_only() -> None:
    assert two_blocks((EARLY, EARLY)) == [[0, 3], [4, 0]]


def test_who_would_like_to_be_late_is_too() -> None:
    assert two_blocks((LATE, LATE)) == [[97, 100], [100, 96]]


def test_no_room_is_no_candidate() -> None:
    assert two_blocks((EARLY, EARLY), latest=2) == []


def test_free_blocks_lie_anywhere_but_on_each_other() -> None:
    placed = two_blocks((FREE, FREE))
    assert len(placed) > 20 and all(3 <= (second - first) % 10 <= 6 for first, second in placed)


def test_memory_counts_what_earlier_micro_batches_still_hold() -> None:
    """F takes one unit that B gives back: a lifetime of 25 at period 10 holds three."""
    for memory, fit in ((2, False), (3, True)):
        instance = TickProblem.of(pipeline(chain(1), forward=3, backward=4, memory=memory))
        assert fits(instance, 10, 0, [0, 1], np.array([[0, 21]])).tolist() == [fit]
