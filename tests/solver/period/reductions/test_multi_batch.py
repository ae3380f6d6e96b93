"""Several micro-batches per period: where that is faster, what it proves, and that copies change nothing else."""

from __future__ import annotations

import pytest
from hypothesis import assume

from tests.support import chain, for_all, pipeline
from tests.support.strategies import Case, cases
from weft.solver import Budget, Schedule, solve, time_orders, unroll, validate
from weft.solver.bounds import steady_bound
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import repeat, retime
from weft.solver.period.reductions.multi_batch import in_copies, repeat_copies
from weft.solver.period.search import find_period
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.step.edges import complete
from weft.solver.ticks import TickProblem


@pytest.mark.parametrize("micro_batches", [15, 16, 17, 100])
def test_completed_copies_are_valid_for_any_number_of_micro_batches(micro_batches: int) -> None:
    problem = pipeline(chain(4), forward=1, backward=3, memory=3)
    instance = TickProblem.of(problem)
    start = repeat_copies(one_at_a_time(instance), in_copies(instance, 3), 3)
    found = find_period(start.instance, start, Budget(), deterministic=20).best
    completion = complete(instance, found, micro_batches, Budget(), edge=1, deterministic=1)
    assert completion is not None
    for orders in (repeat(found, micro_batches), completion.unrolled(micro_batches)):
        validate(Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), 0.0))


def test_the_search_repeats_three_micro_batches_where_that_is_fastest() -> None:
    schedule = solve(pipeline(chain(4), forward=1, backward=3, memory=3), 32, effort=10)
    assert schedule.makespan == schedule.makespan_bound == 180
    assert schedule.repetend is not None and schedule.repetend.micro_batches == 3
    assert schedule.period == schedule.period_bound == pytest.approx(16 / 3)
    longer = unroll(schedule, 32 + 300)
    assert longer.makespan == schedule.makespan + 1600
    with pytest.raises(ValueError, match="multiples"):
        unroll(schedule, 33)


def test_waits_for_micro_batches_before_keep_their_distance() -> None:
    """Of three copies, each waits for the micro-batch two before: the same copies, at other distances."""
    block = Block("a", BlockKind.OTHER, (0,), 1, after=(Dependency("a", 5, None, 2),))
    problem = Problem("p", (Device("gpu"),), (block,))
    copies = in_copies(TickProblem.of(problem), 3)
    arcs = {(arc.source, arc.target, arc.distance) for arc in copies.arcs if arc.lag == 5}
    assert arcs == {(1, 0, 1), (2, 1, 1), (0, 2, 0)}


def test_an_output_is_sent_in_the_same_order_in_every_copy() -> None:
    """b's output goes to c first, which has no time to lose, then to a of the next micro-batch, which has."""
    blocks = (Block("c", BlockKind.OTHER, (0,), 1, after=(Dependency("b", 0, "link"),)),
              Block("a", BlockKind.OTHER, (0,), 1, after=(Dependency("b", 1, "link", 1),)),
              Block("b", BlockKind.OTHER, (1,), 1, after=(Dependency("a"),)),
              Block("d", BlockKind.OTHER, (0,), 1, after=(Dependency("c"),)))
    problem = Problem("p", (Device("gpu0"), Device("gpu1")), blocks, (Link("link", 1, 0),))
    instance = TickProblem.of(problem)
    single = one_at_a_time(instance)
    many = repeat_copies(single, in_copies(instance, 2), 2)
    assert single.rate == 4
    assert retime(many.instance, many.period, many.starts, 2).rate == 4


@for_all(cases(max_devices=3, max_blocks=5, balanced=True), tries=60)
def test_copies_of_a_periodic_schedule_keep_its_rate(case: Case) -> None:
    """Links and waits across micro-batches included: re-timed in copies, the order is no slower, and it is valid."""
    instance = TickProblem.of(case.problem)
    single = one_at_a_time(instance)
    for copies in (2, 3):
        many = repeat_copies(single, in_copies(instance, copies), copies)
        again = retime(many.instance, many.period, many.starts, copies)
        assert again.rate <= single.rate
        assert steady_bound(instance) <= again.rate
        orders = repeat(again, 7)
        assume(all(orders))
        validate(Schedule(case.problem, 7, time_orders(case.problem, 7, orders), 0.0))
