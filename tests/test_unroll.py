"""More micro-batches for schedules whose devices idle, or whose period occurs once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from solver.critical_cycle import critical_cycle
from solver.files import load_schedule
from solver.problem import Device
from solver.schedule import Operation, Repetend, Schedule
from solver.search import solve
from solver.unroll import repeats, unroll
from solver.validate import validate
from tests.builders import chain, pipeline, v

REPROS = Path(__file__).parent / "data" / "repros"


@pytest.mark.parametrize("micro_batches", [1, 2, 5, 9, 40])
def test_a_device_without_work_has_nothing_to_repeat(micro_batches: int) -> None:
    schedule = unroll(load_schedule(REPROS / "unroll-idle.schedule.json"), micro_batches)
    assert schedule.makespan == micro_batches


@pytest.mark.parametrize("micro_batches", [3, 5, 20])
def test_a_period_that_occurs_once_is_repeated_where_all_devices_have_it(micro_batches: int) -> None:
    schedule = unroll(load_schedule(REPROS / "unroll-one-period.schedule.json"), micro_batches)
    assert schedule.repetend is not None
    assert schedule.repetend.count == micro_batches - 1
    assert schedule.makespan == 2 * micro_batches + 2


@pytest.mark.parametrize("shape", [chain(2), v(2), v(3)])
@pytest.mark.parametrize("spare", [0, 3])
def test_schedules_cut_down_to_one_period_grow_again(shape: list[int], spare: int) -> None:
    """Down to one period and back is where it began, and idle devices change nothing."""
    problem = pipeline(shape, memory=len(shape) + 1, lag=0.5)
    problem = replace(problem, devices=(*problem.devices, *(Device(f"spare{i}", 1) for i in range(spare))))
    schedule = solve(problem, 14, effort=0.5)
    assert schedule.repetend is not None
    step, count = schedule.repetend.micro_batches, schedule.repetend.count
    least = unroll(schedule, 14 - (count - 1) * step)
    assert least.repetend == replace(schedule.repetend, count=1)
    longer = unroll(least, 14)
    assert longer.makespan == pytest.approx(schedule.makespan, rel=0.2)
    validate(longer)
    assert critical_cycle(longer) is not None


def test_stretches_that_do_not_fit_together_are_refused() -> None:
    """The first device's stretch ends before what the second's waits for."""
    problem = pipeline(chain(2))
    schedule = solve(problem, 3, effort=0.5)
    rows = [[(0, 0), (3, 0), (0, 1), (0, 2), (3, 1), (3, 2)], [(1, 0), (1, 1), (2, 0), (1, 2), (2, 1), (2, 2)]]
    assert repeats(problem, rows, Repetend(0, 1)) is not None
    alone = [[(0, 0), (3, 0), (0, 1), (0, 2), (3, 2), (3, 1)], [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1), (2, 2)]]
    assert repeats(problem, alone, Repetend(0, 1, 3)) is not None
    assert repeats(problem, alone, Repetend(0, 2)) is None
    told = Schedule(problem, 3, tuple(Operation(o.block, o.micro_batch, o.start, o.end) for o in schedule.operations),
                    0.0, repetend=Repetend(0, 3))
    if repeats(problem, [[(o.block, o.micro_batch) for o in row] for row in told.device_orders],
               Repetend(0, 3)) is None:
        with pytest.raises(ValueError, match="does not fit together"):
            unroll(told, 4)
