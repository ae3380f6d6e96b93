"""The judge on devices with lanes: what fits passes, every single mutation is caught, columns tell what loops do."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.strategies import laned, schedules
from weft.solver import NotApplicable, Schedule, baseline
from weft.solver.judge import validate as judge
from weft.solver.judge.case import tolerance_of
from weft.solver.judge.columns import Columns
from weft.solver.judge.memory_rule import scaled_room
from weft.solver.judge.validate import peaks, violations
from weft.solver.problem import Number


def exact(value: Number) -> Fraction:
    return Fraction(str(value))


def room_cut(schedule: Schedule, device: int, by: Number) -> Schedule:
    """``schedule`` with less memory on ``device``."""
    devices = list(schedule.problem.devices)
    room = devices[device].memory
    assert room is not None
    devices[device] = replace(devices[device], memory=max(room - by, 0))
    return replace(schedule, problem=replace(schedule.problem, devices=tuple(devices)))


def naive_peaks(schedule: Schedule) -> list[Fraction]:
    """Per device, the most held at any start by all that runs on it or on a lane of it."""
    problem = schedule.problem
    found = []
    for owner in problem.devices:
        engines = [d for d, device in enumerate(problem.devices) if owner.name in (device.name, device.lane_of)]
        levels = [Fraction(0)]
        for moment in {o.start for o in schedule.operations} if owner.lane_of is None else ():
            held = Fraction(0)
            for o in schedule.operations:
                for d in engines:
                    change = exact(problem.blocks[o.block].memory_on(d))
                    workspace = exact(problem.blocks[o.block].workspace_on(d))
                    if o.start <= moment:
                        held += max(change, Fraction(0)) + workspace
                    if o.end <= moment:
                        held += min(change, Fraction(0)) - workspace
            levels.append(held)
        found.append(max(levels))
    return found


@for_all(st.data(), schedules(whole=True), tries=60)
def test_a_pool_holds_what_a_naive_count_says(data: Any, schedule: Schedule) -> None:
    made = data.draw(laned(schedule))
    assert peaks(made) == naive_peaks(made)
    assert [max(exact(peak), Fraction(0)) for peak in made.peak_memory] == naive_peaks(made)
    for d in range(len(made.problem.devices)):
        levels = [level for _, level in made.memory_profile(d)]
        assert max(levels) == made.peak_memory[d]
    assert violations(made) == []


@for_all(st.data(), schedules(), tries=60)
def test_memory_cut_by_one_unit_at_the_peak_is_caught(data: Any, schedule: Schedule) -> None:
    made = data.draw(laned(schedule))
    tight = [d for d, device in enumerate(made.problem.devices) if device.memory]
    assume(tight)
    device = data.draw(st.sampled_from(tight))
    found = violations(room_cut(made, device, 0.1))
    assert len(found) == 1
    assert found[0].startswith(f"device {made.problem.devices[device].name!r}: when block ")


@for_all(st.data(), schedules(whole=True, max_micro_batches=3), tries=80)
def test_times_shifted_are_judged_as_a_naive_count_does(data: Any, schedule: Schedule) -> None:
    """One operation is shifted to where its device, and all that waits for it, let it run; memory alone may break."""
    made = data.draw(laned(schedule))
    by = data.draw(st.sampled_from([0.5, 1, 2, 3]))
    place = data.draw(st.integers(0, len(made.operations) - 1))
    operations = [o._replace(start=o.start + by, end=o.end + by) if i >= place else o
                  for i, o in enumerate(made.operations)]
    shifted = made.with_operations(operations)
    assume(violations(shifted, capacities=False) == [])
    fits = all(device.memory is None or peak <= exact(device.memory)
               for device, peak in zip(made.problem.devices, naive_peaks(shifted), strict=True))
    assert (violations(shifted) == []) == fits


@for_all(st.data(), schedules(), st.sampled_from([0.0, 0.3, 1.0, 5.0, -1.0]), tries=80)
def test_lanes_are_judged_in_columns_as_in_loops(data: Any, schedule: Schedule, nudge: float) -> None:
    made = data.draw(laned(schedule))
    if made.problem.links:
        return
    if nudge:  # about as far as the judge can tell
        place = data.draw(st.integers(0, len(made.operations) - 1))
        by = nudge * 1e-9 * made.makespan
        made = made.with_operations([o._replace(start=o.start + by, end=o.end + by) if i == place else o
                                     for i, o in enumerate(made.operations)])
    columns = Columns.of(made.problem, made.micro_batches, made.operations)
    if columns is None:
        return
    tolerance = tolerance_of(made.problem, made.micro_batches, made.makespan, len(made.operations))
    silent = replace(made, makespan_bound=0, period=None, period_bound=None, repetend=None)
    found = columns.broken(tolerance, partial(scaled_room, made.problem), True)
    assert bool(found) == bool(violations(silent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "_MANY", 1)
        assert judge.violations(silent) == violations(silent)


@for_all(st.data(), schedules(), tries=60)
def test_streams_keep_what_lanes_share(data: Any, schedule: Schedule) -> None:
    """On problems of which some schedule fits. None may be found where that is not of one micro-batch at a time."""
    problem = data.draw(laned(schedule)).problem
    assume(problem.has_lanes)
    try:
        made = baseline("stream", problem, schedule.micro_batches)
    except NotApplicable as error:
        assert "one micro-batch at a time" in str(error)
        return
    assert violations(made) == []
