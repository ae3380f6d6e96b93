"""The judge passes what keeps the rules and catches whatever breaks one."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.strategies import Case, cases, pipelines, schedules
from weft.solver import BASELINES, NotApplicable, Operation, Problem, Schedule, baseline, violations

# -- what keeps the rules passes ---------------------------------------------------------------------------------


@for_all(cases(max_micro_batches=7), tries=100)
def test_greedy_fits_whenever_one_micro_batch_at_a_time_does(case: Case) -> None:
    assert violations(baseline("greedy", case.problem, case.micro_batches)) == []


@for_all(pipelines(), st.integers(1, 12), st.sampled_from(sorted(BASELINES)), tries=75)
def test_every_baseline_is_complete_and_in_order_for_any_durations(problem: Problem, n: int, name: str) -> None:
    try:
        schedule = baseline(name, problem, n)
    except NotApplicable:
        assume(False)
    assert violations(schedule, capacities=False) == []


# -- each single corruption is caught ----------------------------------------------------------------------------


@st.composite
def corruptions(draw: st.DrawFn) -> tuple[Schedule, Schedule]:
    """A valid schedule and an operation-wise corruption of it that breaks a rule by construction."""
    schedule = draw(schedules())
    operations = list(schedule.operations)
    blocks = schedule.problem.blocks
    place = draw(st.integers(0, len(operations) - 1))
    chosen = operations[place]
    least = min(block.duration for block in blocks)
    kind = draw(st.sampled_from(["shift", "drop", "duplicate", "later duplicate", "stretch", "shrink", "renumber",
                                 "out of range", "rename", "swap micro-batches", "swap consumer", "not a number"]))
    if kind == "shift":
        # Times are the least for their orders: whatever starts after 0 starts as soon as something lets it. A shift by
        # less than the shortest block leaves all orders as they are.
        by = least * draw(st.floats(0.01, 0.49))
        operations[place] = chosen._replace(start=chosen.start - by, end=chosen.end - by)
    elif kind == "drop":
        del operations[place]
    elif kind == "duplicate":
        operations.append(chosen)
    elif kind == "later duplicate":
        end = schedule.makespan
        operations.append(chosen._replace(start=end, end=end + blocks[chosen.block].duration))
    elif kind == "stretch":
        operations[place] = chosen._replace(end=chosen.end + least * draw(st.floats(0.01, 3)))
    elif kind == "shrink":
        operations[place] = chosen._replace(end=chosen.end - least * draw(st.floats(0.01, 1)))
    elif kind == "renumber":
        other = draw(st.integers(0, schedule.micro_batches))
        operations[place] = chosen._replace(micro_batch=other + (other >= chosen.micro_batch))
    elif kind == "out of range":
        operations[place] = chosen._replace(micro_batch=draw(st.sampled_from([-1, -7, schedule.micro_batches, 10**12])))
    elif kind == "rename":
        other = draw(st.integers(-1, len(blocks) - 1))
        operations[place] = chosen._replace(block=other + (other >= chosen.block))
    elif kind == "swap micro-batches":  # the next micro-batch of the same block first
        next_place = _find(operations, chosen.block, chosen.micro_batch + 1)
        assume(next_place is not None)
        _swap_times(operations, place, next_place)
    elif kind == "swap consumer":  # a block before one it waits for
        waits = [_find(operations, schedule.problem.index[d.block], chosen.micro_batch - d.distance)
                 for d in blocks[chosen.block].after]
        producers = [other for other in waits if other is not None]
        assume(producers)
        _swap_times(operations, place, draw(st.sampled_from(producers)))
    else:
        operations[place] = chosen._replace(start=draw(st.sampled_from([math.nan, math.inf, -math.inf])))
    return schedule, schedule.with_operations(operations)


def _find(operations: list[Operation], block: int, micro_batch: int) -> int | None:
    return next((i for i, o in enumerate(operations) if (o.block, o.micro_batch) == (block, micro_batch)), None)


def _swap_times(operations: list[Operation], place: int, other: int | None) -> None:
    assert other is not None
    one, two = operations[place], operations[other]
    operations[place] = one._replace(start=two.start, end=two.start + (one.end - one.start))
    operations[other] = two._replace(start=one.start, end=one.start + (two.end - two.start))


@for_all(corruptions(), tries=250)
def test_any_single_corruption_of_the_operations_is_caught(pair: tuple[Schedule, Schedule]) -> None:
    good, bad = pair
    assert violations(good) == []
    found = violations(bad)
    assert found
    names = [block.name for block in bad.problem.blocks] + [device.name for device in bad.problem.devices]
    for message in found:
        assert any(repr(name) in message for name in names) or "names block number" in message


@for_all(schedules(), st.data(), tries=100)
def test_a_capacity_below_the_peak_is_caught(schedule: Schedule, data: st.DataObject) -> None:
    used = [d for d, peak in enumerate(schedule.peak_memory) if peak > 1e-9]  # sums of floats, 0 may be 1e-17
    assume(used)
    device = data.draw(st.sampled_from(used))
    devices = list(schedule.problem.devices)
    share = data.draw(st.sampled_from([0, 0.5, 0.999]))
    devices[device] = replace(devices[device], memory=schedule.peak_memory[device] * share)
    found = violations(replace(schedule, problem=replace(schedule.problem, devices=tuple(devices))))
    assert len(found) == 1
    assert f"device {devices[device].name!r}" in found[0]
    assert schedule.problem.memory_unit in found[0]


# -- the judge against a naive one -------------------------------------------------------------------------------


@for_all(schedules(max_micro_batches=3, whole=True), st.data(), tries=125)
def test_the_judge_agrees_with_a_naive_one(schedule: Schedule, data: st.DataObject) -> None:
    """On schedules disturbed in several places, some of which stay valid."""
    operations = list(schedule.operations)
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(0, len(operations) - 1))
        by = data.draw(st.integers(-3, 8))
        for i in range(place if data.draw(st.booleans()) else len(operations) - 1, len(operations)):
            operations[i] = operations[i]._replace(start=operations[i].start + by, end=operations[i].end + by)
    disturbed = schedule.with_operations(operations)
    assert (violations(disturbed) == []) == _naive(disturbed)


def _naive(schedule: Schedule) -> bool:
    """Whether a schedule with every operation once is valid, by comparing everything with everything."""
    problem, n = schedule.problem, schedule.micro_batches
    at = {(o.block, o.micro_batch): o for o in schedule.operations}
    good = min(o.start for o in schedule.operations) == 0
    good &= all(at[b, m].start < at[b, m + 1].start for b, m in at if m + 1 < n)
    for one in schedule.operations:
        for two in schedule.operations:
            shared = set(problem.blocks[one.block].devices) & set(problem.blocks[two.block].devices)
            good &= one is two or not shared or one.end <= two.start or two.end <= one.start
    transfers: dict[str, list[tuple[Operation, int, Operation, float]]] = {}
    for order, (producer, consumer, dependency) in enumerate(problem.dependencies()):
        for m in range(n - dependency.distance):
            before, after = at[producer, m], at[consumer, m + dependency.distance]
            good &= after.start >= before.end + dependency.lag - 1e-9
            if dependency.link is not None:
                transfers.setdefault(dependency.link, []).append((before, order, after, dependency.lag))
    for listed in transfers.values():
        free = 0.0
        for before, _, after, lag in sorted(listed, key=lambda transfer: (transfer[0].start, transfer[1])):
            free = max(free, before.end) + lag
            good &= after.start >= free - 1e-9
    for d, device in enumerate(problem.devices):
        for moment in {o.start for o in schedule.operations} if device.memory is not None else ():
            held = Fraction(0)
            for o in schedule.operations:
                block = problem.blocks[o.block]
                change, workspace = Fraction(str(block.memory_on(d))), Fraction(str(block.workspace_on(d)))
                if o.start <= moment:
                    held += max(change, Fraction(0)) + workspace
                if o.end <= moment:
                    held += min(change, Fraction(0)) - workspace
            good &= held <= Fraction(str(device.memory))
    return good
