"""Critical paths, causes of idle time, and critical cycles: what they claim of a schedule is true of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume

from tests.support import chain, for_all, pipeline, shape, valid
from tests.support.strategies import Case, cases, schedules
from weft.solver import Budget, Operation, Repetend, Schedule, solve, time_orders, validate, violations
from weft.solver.diagnose.bubbles import idle_times
from weft.solver.diagnose.critical_cycle import critical_cycle
from weft.solver.diagnose.critical_path import CriticalPath, critical_path
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import repeat
from weft.solver.period.search import find_period
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.ticks import TickProblem

Rows = list[list[tuple[int, int]]]


def rows_of(schedule: Schedule) -> Rows:
    return [[(o.block, o.micro_batch) for o in row] for row in schedule.device_orders]


def timed(problem: Problem, n: int, orders: Sequence[Sequence[tuple[int, int]]]) -> Schedule:
    return Schedule(problem, n, time_orders(problem, n, orders), 0.0)


def block(name: str, devices: tuple[int, ...], duration: float, *after: Dependency, memory: float = 0) -> Block:
    return Block(name, BlockKind.OTHER, devices, duration, (memory,), after=after)


def told(path: CriticalPath) -> list[tuple[str, int, str]]:
    return [(step.kind, step.operation.block, step.reason) for step in path.steps]


# -- the critical path ---------------------------------------------------------------------------------------------


@for_all(schedules(), tries=60)
def test_the_path_fills_all_time_from_0_to_the_makespan(schedule: Schedule) -> None:
    path = critical_path(schedule)
    assert path.length == pytest.approx(schedule.makespan)
    assert path.steps[0].start == 0
    assert path.steps[0].reason == "start"
    assert path.steps[-1].end == schedule.makespan
    for earlier, later in pairwise(path.steps):
        assert later.start == pytest.approx(earlier.end)
    assert all(step.operation in schedule.operations for step in path.steps)
    assert not any(step.kind == "wait" for step in path.steps)  # everything starts as early as its order allows


@for_all(schedules(), tries=60)
def test_a_longer_block_on_the_path_makes_the_same_order_longer(schedule: Schedule) -> None:
    path = critical_path(schedule)
    longer = max((step for step in path.steps if step.kind == "operation"), key=lambda step: step.length)
    index = longer.operation.block
    times = sum(block == index for block, _ in path.operations)
    blocks = tuple(replace(b, duration=b.duration + 1) if i == index else b
                   for i, b in enumerate(schedule.problem.blocks))
    changed = timed(replace(schedule.problem, blocks=blocks), schedule.micro_batches, rows_of(schedule))
    assert changed.makespan >= schedule.makespan + times - 1e-9 * changed.makespan


@for_all(schedules(), tries=60)
def test_an_order_forced_by_memory_cannot_be_exchanged(schedule: Schedule) -> None:
    forced = [step for step in critical_path(schedule).steps if step.reason == "memory"]
    for step in forced[:3]:
        rows = rows_of(schedule)
        later = (step.operation.block, step.operation.micro_batch)
        assert step.device is not None
        row = rows[step.device]
        earlier = row[row.index(later) - 1]
        for device in set(schedule.problem.blocks[later[0]].devices) & set(schedule.problem.blocks[earlier[0]].devices):
            rows[device].remove(later)
            rows[device].insert(rows[device].index(earlier), later)
        exchanged = timed(schedule.problem, schedule.micro_batches, rows)
        assert any("memory" in fault or "holds" in fault for fault in violations(exchanged))


def test_transfers_that_queue_on_a_link_are_on_the_path() -> None:
    problem = Problem("queue", (Device("a"), Device("b")), (
        block("x", (0,), 1), block("y", (0,), 1), block("u", (1,), 1, Dependency("x", 5, "wire")),
        block("v", (1,), 1, Dependency("y", 2, "wire"))), (Link("wire", 0, 1),))
    path = critical_path(timed(problem, 1, [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]))
    assert told(path) == [("operation", 0, "start"), ("transfer", 0, "dependency"), ("transfer", 1, "link"),
                          ("operation", 3, "dependency")]
    assert [step.length for step in path.steps] == [1, 5, 2, 1]


def test_time_in_which_nothing_holds_an_operation_is_a_wait() -> None:
    problem = Problem("late", (Device("a"),), (block("x", (0,), 1), block("y", (0,), 1)))
    path = critical_path(Schedule(problem, 1, (Operation(0, 0, 0, 1), Operation(1, 0, 3, 4)), 0.0))
    assert told(path) == [("operation", 0, "start"), ("wait", 1, "device"), ("operation", 1, "none")]
    assert path.length == 4


# -- idle time -------------------------------------------------------------------------------------------------------


@for_all(schedules(), tries=60)
def test_gaps_are_exactly_the_time_no_operation_runs(schedule: Schedule) -> None:
    for entry, row in zip(idle_times(schedule), schedule.device_orders, strict=True):
        pieces = sorted([(o.start, o.end) for o in row] + [(gap.start, gap.end) for gap in entry.gaps])
        assert (pieces[0][0] if pieces else 0.0) == 0.0
        assert all(earlier[1] == pytest.approx(later[0]) for earlier, later in pairwise(pieces))
        assert (pieces[-1][1] if pieces else 0.0) == pytest.approx(schedule.makespan)
        assert entry.busy == pytest.approx(sum(o.end - o.start for o in row))
        assert sum(entry.by_cause.values()) == pytest.approx(entry.total)
        assert entry.busy + entry.total == pytest.approx(schedule.makespan)


@for_all(schedules(), tries=60)
def test_work_kept_waiting_by_memory_does_not_fit_and_by_the_order_does(schedule: Schedule) -> None:
    """Move what was ready to the front of the gap: the judge finds too little memory, or no fault at all."""
    problem, n = schedule.problem, schedule.micro_batches
    moved = 0
    for entry in idle_times(schedule):
        for gap in entry.gaps:
            if gap.cause not in ("memory", "order") or gap.length < 1e-6 * schedule.makespan or moved > 5:
                continue
            assert gap.ready is not None
            moved += 1
            ready, rows = (gap.ready.block, gap.ready.micro_batch), rows_of(schedule)
            for device in problem.blocks[ready[0]].devices:
                started = sum(o.start <= gap.start for o in schedule.device_orders[device])
                rows[device].remove(ready)
                rows[device].insert(started, ready)
            faults = violations(timed(problem, n, rows))
            assert bool(faults) == (gap.cause == "memory"), faults


def test_causes_of_idle_time_by_hand() -> None:
    """Two stages with memory for one micro-batch and half a unit between them: f0 runs 0-1, f1 1.5-2.5, b1 2.5-4.5, b0
    5-7, and the second micro-batch starts at 7."""
    schedule = timed(pipeline(chain(2), memory=1, lag=0.5), 2, [[(0, 0), (3, 0), (0, 1), (3, 1)],
                                                               [(1, 0), (2, 0), (1, 1), (2, 1)]])
    first, second = ({cause: time for cause, time in entry.by_cause.items() if time} for entry in idle_times(schedule))
    assert first == {"memory": 4, "dependency": 3.5, "transfer": 0.5}
    assert second == {"warm_up": 1.5, "dependency": 3.5, "transfer": 0.5, "cool_down": 2.5}


@pytest.mark.parametrize(("after", "cause"), [((), "order"), ((Dependency("both"),), "device")])
def test_a_block_on_two_devices_waits_for_the_other_one(after: tuple[Dependency, ...], cause: str) -> None:
    """From 1 to 4 the first device waits for the second; if it has other work, that is a choice."""
    gang = Problem("gang", (Device("a"), Device("b")), (
        block("short", (0,), 1), block("long", (1,), 4), block("both", (0, 1), 2), block("more", (0,), 1, *after)))
    entry = idle_times(timed(gang, 1, [[(0, 0), (2, 0), (3, 0)], [(1, 0), (2, 0)]]))[0]
    assert [(gap.start, gap.end, gap.cause) for gap in entry.gaps] == [(1, 4, cause)]


# -- the critical cycle ------------------------------------------------------------------------------------------------


@for_all(cases(whole=True, balanced=True, max_micro_batches=1), tries=25)
def test_the_cycle_of_a_periodic_schedule_is_its_period(case: Case) -> None:
    instance = TickProblem.of(case.problem)
    assume(instance.balanced and takes_before_giving(instance))
    found = find_period(instance, one_at_a_time(instance), Budget(), deterministic=0.2).best
    n = found.depth + 3
    schedule = replace(timed(case.problem, n, repeat(found, n)), repetend=Repetend(found.depth, n - found.depth),
                       period=instance.time(found.period))
    validate(schedule)
    cycle = critical_cycle(schedule)
    assert cycle is not None
    assert Fraction(cycle.period) == found.period * instance.tick
    assert sum(turn.weight for turn in cycle.waits) == pytest.approx(cycle.weight)
    assert sum(turn.height for turn in cycle.waits) == cycle.height
    for turn, following in pairwise([*cycle.waits, cycle.waits[0]]):
        assert turn.target == following.source or turn.reason in ("link", "dependency")  # a transfer in between


def test_a_cycle_through_memory_names_the_device() -> None:
    """1F1B on 4 stages with transfers of half a unit: 15 units around, and gpu0 holds 4 micro-batches."""
    schedule = solve(pipeline(chain(4), memory=4, lag=0.5), 16, effort=1)
    cycle = critical_cycle(schedule)
    assert cycle is not None
    assert (cycle.weight, cycle.height, cycle.period, cycle.device) == (15, 4, schedule.period, None)
    assert [(turn.reason, turn.device) for turn in cycle.waits if turn.reason != "dependency"] == [("memory", 0)]


def test_a_device_that_is_always_busy_is_the_whole_cycle() -> None:
    cycle = critical_cycle(solve(shape("chain", 4, 4), 16, effort=1))
    assert cycle is not None
    assert cycle.device is not None
    assert (cycle.weight, cycle.height) == (4, 1)


def test_a_period_of_several_micro_batches_has_its_cycle() -> None:
    schedule = solve(pipeline(chain(4), forward=1, backward=3, memory=3), 32, effort=10)
    cycle = critical_cycle(schedule)
    assert cycle is not None
    assert cycle.micro_batches == 3
    assert cycle.period == pytest.approx(16 / 3)


def test_no_steady_state_no_cycle() -> None:
    schedule = timed(pipeline(chain(2)), 1, [[(0, 0), (3, 0)], [(1, 0), (2, 0)]])
    assert critical_cycle(schedule) is None
    assert critical_cycle(replace(schedule, repetend=Repetend(0, 1))) is None


def test_memory_that_another_lane_gives_back_closes_a_cycle() -> None:
    """One activation fits, and a lane copies it away: neither engine is busy, and no order says what they wait for."""
    problem = Problem("copies", (Device("gpu", 1), Device("copies", lane_of="gpu")), (
        Block("F", BlockKind.FORWARD, (0,), 1, (1,)),
        Block("O", BlockKind.OTHER, (1,), 2, (-1,), after=(Dependency("F"),))))
    operations = [Operation(b, m, 3 * m + b, 3 * m + 1 + 2 * b) for m in range(6) for b in (0, 1)]
    schedule = valid(Schedule(problem, 6, tuple(operations), 18.0, period=3.0, period_bound=3.0,
                              repetend=Repetend(first=0, count=6)))
    cycle = critical_cycle(schedule)
    assert cycle is not None and cycle.period == 3 and cycle.device is None
    assert sorted((wait.source, wait.target, wait.reason, wait.height, wait.device) for wait in cycle.waits) == [
        (0, 1, "dependency", 0, None), (1, 0, "memory", 1, 0)]
    path = critical_path(schedule)
    assert path.length == 18 and {step.reason for step in path.steps} == {"start", "dependency", "memory"}
    idle, = idle_times(schedule)  # of the lane there is none to tell of
    assert idle.device == 0 and idle.by_cause["memory"] == 10 and idle.by_cause["cool_down"] == 2
    assert idle.total / schedule.makespan == pytest.approx(schedule.bubble.step)
