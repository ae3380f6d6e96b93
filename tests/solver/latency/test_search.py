"""The least latency at a throughput floor: by hand, against trying everything, and as schedules that are judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest

from tests.oracles.brute import least_latency_on_grid
from tests.support import chain, for_all, judged, loop, pipeline, shape, v
from tests.support.strategies import problems
from weft.solver import Budget, Infeasible, validate
from weft.solver.latency.search import (
    FixedHeights,
    LatencySearch,
    least_latency,
    least_latency_of,
    listed_within,
    longest_chain,
)
from weft.solver.period import Periodic, find_period
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.step.stretch import at_its_times
from weft.solver.ticks import TickProblem


def forwards(devices: Sequence[int], durations: Sequence[Number], lag: Number = 0) -> Problem:
    """Inference: a chain of forwards that keep nothing."""
    return Problem("forwards", tuple(Device(f"gpu{d}") for d in sorted(set(devices))), tuple(
        Block(f"f{s}", BlockKind.FORWARD, (device,), duration, (), (),
              (Dependency(f"f{s - 1}", lag if devices[s - 1] != device else 0),) if s else ())
        for s, (device, duration) in enumerate(zip(devices, durations, strict=True))))


def search(problem: Problem, limit: Fraction | int | None = None) -> LatencySearch:
    """At a period of at most ``limit`` (the problem's unit); without one at the least period."""
    instance = TickProblem.of(problem)
    limit = None if limit is None else limit / instance.tick
    trivial = one_at_a_time(instance)
    known = [trivial]
    least = None
    if limit is None or trivial.period > limit:
        periods = find_period(instance, trivial, Budget(deterministic=10.0))
        known.append(periods.best)
        least = periods.refuted
        limit = periods.best.period if limit is None else limit
    start = min((found for found in known if found.period <= limit), key=lambda found: found.latency)
    return least_latency(instance, Fraction(limit), start, Budget(deterministic=20.0), least_period=least)


def judged_at(found: Periodic) -> None:
    """Unrolled, the schedule is valid, and every micro-batch takes as long as the schedule says."""
    schedule = at_its_times(found, found.depth + 4)
    validate(schedule)
    for m in range(schedule.micro_batches):
        mine = [operation for operation in schedule.operations if operation.micro_batch == m]
        took = max(operation.end for operation in mine) - min(operation.start for operation in mine)
        assert took == pytest.approx(found.instance.time(found.latency))


@pytest.mark.parametrize(("limit", "latency", "period"), [(4, 10, 4), (5, 10, 4), (Fraction(59, 10), 10, 4), (6, 8, 6),
                                                         (7, 8, 6), (8, 8, 6)])
def test_two_rounds_over_two_devices_are_either_fast_or_frequent(limit: Fraction | int, latency: int,
                                                               period: int) -> None:
    """A, B, A, B of 2 each. Without a pause device A starts at 0 and at 4, which repeats from a period of 6 on; more
    often than that the next micro-batch runs first, so the second start is 2 + P at least, and the latency 6 + P: least
    at the least period, 4. So a period of 5 allows less than all schedules of exactly that period (11)."""
    found = search(forwards(loop(2), [2, 2, 2, 2]), limit)
    assert found.proven
    tick = found.best.instance.tick
    assert found.best.latency * tick == found.bound * tick == latency
    assert found.best.period * tick == period
    judged_at(found.best)


def test_a_link_that_is_busy_delays_the_second_transfer() -> None:
    """One block sends two results over one link, 3 each: the second consumer starts at 1 + 6, not 1 + 3."""
    link = (Link("wire", 0, 1),)
    wait = (Dependency("a", 3, "wire"),)
    problem = Problem("fork", (Device("x"), Device("y")), (
        Block("a", BlockKind.FORWARD, (0,), 1), Block("b", BlockKind.FORWARD, (1,), 1, after=wait),
        Block("c", BlockKind.FORWARD, (1,), 1, after=wait)), link)
    found = search(problem)
    assert found.proven and found.best.period == 6 and found.best.latency == 8
    judged_at(found.best)


@pytest.mark.parametrize("kind", ["chain", "m", "nn", "k"])
def test_inference_of_tessel_s_shapes_is_proven_at_full_throughput(kind: str) -> None:
    problem = shape(kind, 4, None)
    found = search(problem)
    assert found.proven
    assert found.best.period == TickProblem.of(problem).heaviest_load
    judged_at(found.best)


def test_decimal_durations_and_a_limit_that_is_no_whole_number_of_ticks() -> None:
    found = search(forwards(loop(2), [0.31, 0.17, 0.22, 0.45], lag=0.03), Fraction("0.6235"))
    assert found.proven and found.best.instance.time(found.best.period) <= 0.6235
    judged_at(found.best)


def test_a_start_that_is_too_slow_is_refused() -> None:
    instance = TickProblem.of(forwards(chain(2), [1, 1]))
    with pytest.raises(ValueError, match="period of 5 ticks, more than 2"):
        least_latency(instance, Fraction(2), Periodic(instance, Fraction(5), (Fraction(0), Fraction(1))), Budget())


@for_all(problems(max_devices=2, max_blocks=4, whole=True, balanced=True, links=False, capacities=True), tries=60)
def test_no_schedule_on_a_grid_beats_the_bound(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    if not takes_before_giving(instance):
        return
    try:
        trivial = one_at_a_time(instance)
    except (Infeasible, ValueError):
        return
    limit = trivial.period * Fraction(3, 4)
    scale = TickProblem.of(problem).tick
    expected = least_latency_on_grid(problem, limit * scale, Fraction(1, 2))
    periods = find_period(instance, trivial, Budget(deterministic=2.0))
    if periods.best.period > limit:
        assert expected is None or expected[0] / scale >= periods.refuted
        return
    found = least_latency(instance, limit, periods.best, Budget(deterministic=5.0))
    judged_at(found.best)
    assert found.best.period <= limit
    assert found.bound <= found.best.latency and found.proven
    if expected is not None:
        assert found.best.latency <= expected[1] / scale
        on_grid = (found.best.period * scale * 2).denominator == 1
        assert not on_grid or found.best.latency == expected[1] / scale


@for_all(problems(max_devices=3, max_blocks=6, balanced=True), tries=40)
def test_more_time_for_a_period_never_costs_latency(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    if not takes_before_giving(instance):
        return
    trivial = one_at_a_time(instance)
    periods = find_period(instance, trivial, Budget(deterministic=1.0))
    last = math.inf
    for share in (Fraction(0), Fraction(1, 3), Fraction(1)):
        limit = periods.best.period + share * (trivial.period - periods.best.period)
        start = min((one for one in (trivial, periods.best) if one.period <= limit), key=lambda one: one.latency)
        found = least_latency(instance, limit, start, Budget(deterministic=2.0), least_period=periods.refuted)
        judged_at(found.best)
        assert found.best.period <= limit
        assert (longest_chain(instance, limit) or 0) <= found.bound <= found.best.latency
        assert found.bound <= last
        last = float(found.best.latency)


@pytest.mark.slow
def test_bytes_times_nanoseconds_fit_the_model() -> None:
    """Of GPT-1.3B on V100s: their products are over 64 bits, and the model must not be refused."""
    problem = pipeline(loop(2), forward=0.104102873, backward=None, split=(0.104102871, 0.074102879),
                       activation=4_294_967_296, memory=27_514_634_241)
    found = search(problem, Fraction(7, 10))
    assert found.bound <= found.best.latency
    judged_at(found.best)


@pytest.mark.parametrize("problem", [pipeline(loop(2), forward=2, backward=3, memory=4),
                                     pipeline(v(3), split=(2, 3), activation=2, memory=9)])
def test_they_are_valid_and_fast_enough(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    least = Fraction(instance.heaviest_load)
    found = list(listed_within(instance, least, 2 * least))
    assert found
    for one in found:
        assert least <= one.period <= 2 * least
        judged(one)


def test_room_below_the_floor_lets_a_micro_batch_pass_without_a_wait() -> None:
    """Two rounds over two devices: at a period of 6 a micro-batch of 8 never waits."""
    instance = TickProblem.of(pipeline(loop(2), forward=2, backward=None))
    found = min(one.latency for one in listed_within(instance, Fraction(4), Fraction(6) / instance.tick))
    assert found * instance.tick == 8


@for_all(problems(), tries=25)
def test_the_least_latency_of_an_order_is_no_longer_than_before(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    if not instance.balanced or not takes_before_giving(instance):
        return
    try:
        known = one_at_a_time(instance)
    except (Infeasible, ValueError):
        return
    found = least_latency_of(known, 2 * known.period)
    assert found.latency <= known.latency and found.period <= 2 * known.period
    judged(found)


def test_a_stage_alone_takes_its_work() -> None:
    """F, then B, one device: with height 0, B follows F of its own micro-batch, and the next F follows B."""
    instance = TickProblem.of(pipeline(chain(1), memory=1))
    (pair,) = instance.shared_pairs()
    found = FixedHeights(instance, {pair: 0}).best(Fraction(1), Fraction(100))
    assert found is not None
    assert found.period == found.latency == sum(instance.durations)


def test_a_period_that_the_heights_rule_out_has_no_schedule() -> None:
    instance = TickProblem.of(pipeline(chain(1), memory=1))
    (pair,) = instance.shared_pairs()
    assert FixedHeights(instance, {pair: 0}).best(Fraction(1), Fraction(sum(instance.durations) - 1)) is None
