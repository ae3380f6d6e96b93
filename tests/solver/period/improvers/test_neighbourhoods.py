"""Neighbourhoods of steady states: what is found fits and is shorter, and what is held fixed is held exactly."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import judged, loop, pipeline, v
from tests.support.examples import examples
from tests.support.strategies import Case, cases
from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.period.improvers.list_schedule import list_periodic
from weft.solver.period.improvers.neighbourhoods import improve_nearby
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.modulo_model import ModuloModel
from weft.solver.period.periodic import Periodic, critical_blocks, in_order, lags_between
from weft.solver.period.search import find_period
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.relations.min_dist import UNRELATED, least_distances, least_open_period, takes_before_giving
from weft.solver.ticks import TickProblem


def unequal(problem: Problem, seed: int) -> Problem:
    """``problem`` with durations drawn from 80 to 120 times what they are."""
    draw = random.Random(seed)
    blocks = [Block(block.name, block.kind, block.devices, block.duration * draw.randint(80, 120), block.memory,
                    block.workspace, block.after) for block in problem.blocks]
    return Problem(problem.name, problem.devices, tuple(blocks))


@pytest.mark.parametrize(("devices", "memory"), [(v(8), 10), (loop(8), 12), (v(12), 12)])
def test_shorter_periods_are_found_and_fit(devices: list[int], memory: int) -> None:
    instance = TickProblem.of(unequal(pipeline(devices, forward=1, backward=2, memory=memory), 1))
    low = least_open_period(instance, sum(instance.durations))
    start = list_periodic(instance, low, sum(instance.durations))
    assert start is not None and start.period > low
    heard: list[Fraction] = []
    found = improve_nearby(start, low, Budget(deterministic=10.0), lambda better: heard.append(better.period),
                           deterministic=1.0)
    assert low <= found.period < start.period
    assert heard == sorted(heard, reverse=True) and heard[-1] == found.period
    judged(found)


def test_one_at_a_time_is_left_behind() -> None:
    """Four equal stages with room for all: from 12 to 3, the load."""
    instance = TickProblem.of(pipeline([0, 1, 2, 3], forward=1, backward=2, memory=4))
    found = improve_nearby(one_at_a_time(instance), 3, Budget(deterministic=10.0), deterministic=5.0)
    assert found.period == 3
    judged(found)


def test_two_workers_try_two_neighbourhoods_at_a_time() -> None:
    instance = TickProblem.of(unequal(pipeline(v(8), forward=1, backward=2, memory=10), 1))
    start = list_periodic(instance, instance.heaviest_load, sum(instance.durations))
    assert start is not None
    found = improve_nearby(start, instance.heaviest_load, Budget(deterministic=10.0, workers=2), deterministic=1.0)
    assert found.period < start.period
    judged(found)


def test_the_search_ends_where_all_devices_together_are_refuted() -> None:
    """A V over four devices whose best period lies above what the closure refutes; there is no limit of time."""
    instance = TickProblem.of(unequal(pipeline(v(4), forward=1, backward=2, memory=4), 1))
    start = find_period(instance, one_at_a_time(instance), Budget())
    low = least_open_period(instance, int(start.best.period))
    assert start.proven and low < start.best.period
    assert improve_nearby(start.best, low, Budget(), deterministic=float("inf")) is start.best


def test_a_single_device_is_its_only_neighbourhood() -> None:
    """B waits five ticks for A; the device meanwhile runs other micro-batches."""
    blocks = (Block("A", BlockKind.FORWARD, (0,), 1),
              Block("B", BlockKind.FORWARD, (0,), 1, after=(Dependency("A", 5),)))
    start = one_at_a_time(TickProblem.of(Problem("alone", (Device("x"),), blocks)))
    found = improve_nearby(start, 2, Budget(), deterministic=5.0)
    assert found.period == 2 < start.period
    judged(found)


def test_no_shorter_than_asked_for() -> None:
    instance = TickProblem.of(pipeline([0, 1, 2, 3], forward=1, backward=2, memory=4))
    start = one_at_a_time(instance)
    assert improve_nearby(start, 12, Budget(), deterministic=5.0) is start


@pytest.mark.parametrize("seed", range(5))
def test_lags_of_a_fixed_order_hold_in_its_schedule_and_are_met_by_some(seed: int) -> None:
    instance = TickProblem.of(unequal(pipeline(v(5), forward=1, split=(1, 1), memory=6), seed))
    found = list_periodic(instance, instance.heaviest_load, sum(instance.durations))
    assert found is not None and found.period.denominator == 1
    lags = lags_between(instance, found.rings, int(found.period), range(len(instance.durations)))
    assert lags is not None
    for i in instance.blocks:
        for j in instance.blocks:
            assert lags[i, j] <= found.starts[j] - found.starts[i]
    # Starts as early as block 0 allows are a schedule too: the lags from it say all.
    from_first = [int(lags[0, j]) for j in instance.blocks]
    assert min(from_first) > UNRELATED // 2
    earliest = Periodic(instance, found.period, tuple(map(Fraction, from_first)))
    again = in_order(instance, earliest.rings)
    assert again is not None and again.period == found.period


def test_no_lags_where_the_fixed_order_does_not_allow_the_period() -> None:
    instance = TickProblem.of(unequal(pipeline(v(5), forward=1, backward=2, memory=6), 0))
    found = list_periodic(instance, instance.heaviest_load, sum(instance.durations))
    assert found is not None
    assert lags_between(instance, found.rings, int(found.period) - 1, range(4)) is None


def test_the_critical_blocks_are_as_long_as_the_period() -> None:
    """One device after the other and one micro-batch at a time: all blocks wait for each other in turn."""
    instance = TickProblem.of(pipeline([0, 1], forward=1, backward=2, memory=1))
    assert sorted(critical_blocks(one_at_a_time(instance))) == [0, 1, 2, 3]


# -- blocks on several devices, and transfers on links -----------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(cases(balanced=True, whole=True))
def test_neighbourhoods_of_any_problem_fit(case: Case) -> None:
    instance = TickProblem.of(case.problem)
    if not (instance.balanced and takes_before_giving(instance)):
        return
    start = one_at_a_time(instance)
    found = improve_nearby(start, instance.heaviest_load, Budget(deterministic=5.0), deterministic=0.3)
    assert instance.heaviest_load <= found.period <= start.period
    judged(found)


@settings(max_examples=examples(100), deadline=None)
@given(cases(balanced=True, whole=True), st.data())
def test_what_some_devices_fix_leaves_room_for_every_schedule_with_their_order(case: Case, data: st.DataObject) -> None:
    """The schedule itself is one of them; its transfers from free devices may come in another order."""
    instance = TickProblem.of(case.problem)
    if not instance.balanced:
        return
    whole = one_at_a_time(instance)
    free = data.draw(st.sets(st.integers(0, len(instance.capacity) - 1), min_size=1))
    fixed = [() if device in free else ring for device, ring in enumerate(whole.rings)]
    blocks = sorted({i for device in free for i in instance.blocks_on[device]})
    fine = whole.period.denominator
    lags = lags_between(instance.refined(fine), fixed, int(whole.period * fine), blocks)
    assert lags is not None
    for i in blocks:
        for j in blocks:
            assert lags[i, j] <= (whole.starts[j] - whole.starts[i]) * fine


def test_transfers_wait_for_each_other_where_the_order_of_their_device_is_asked_for() -> None:
    """A and B hold device 0 too, from which both send: which of them is first there, devices 1 and 2 do not say."""
    blocks = [Block("A", BlockKind.FORWARD, (0, 1), 1, (0, 0)), Block("B", BlockKind.FORWARD, (0, 2), 1, (0, 0)),
              Block("C", BlockKind.FORWARD, (1,), 1, (0,), after=(Dependency("A", 3, "wire"),)),
              Block("D", BlockKind.FORWARD, (1,), 1, (0,), after=(Dependency("B", 3, "wire"),))]
    problem = Problem("wired", tuple(map(Device, "xyz")), tuple(blocks), (Link("wire", 0, 1),))
    instance = TickProblem.of(problem)
    lags = least_distances(instance, 6)
    assert lags is not None
    part, whole = ModuloModel(instance, 6, lags, [1, 2]), ModuloModel(instance, 6, lags)
    assert len(part.model.proto.variables) < len(whole.model.proto.variables)
    for model in (part, whole):
        outcome = run(model.model, Budget(), deterministic=1.0, relaxation=False)
        assert outcome.found
    judged(improve_nearby(one_at_a_time(instance), 6, Budget(), deterministic=1.0))
