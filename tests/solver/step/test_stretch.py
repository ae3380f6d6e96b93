"""More micro-batches for schedules whose devices idle, or whose period occurs once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support import REPROS, chain, pipeline, slow, v, valid
from weft.solver import Device, Repetend, Schedule, load_schedule, solve, time_orders, validate
from weft.solver.diagnose.critical_cycle import critical_cycle
from weft.solver.step.stretch import repeats, unroll


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
    """The first device repeats its order late, the second early: nothing can be put in without waiting in a circle."""
    problem = pipeline(chain(2))
    names = {"f": (0, 1), "b": (3, 2)}
    rows = [[(names[entry[0]][device], int(entry[1])) for entry in row.split()] for device, row in enumerate((
        "f0 f1 b0 b1 f2 f3 b2 f4 b3 f5 b4 b5", "f0 b0 f1 b1 f2 f3 b2 b3 f4 f5 b4 b5"))]
    assert repeats(problem, rows, Repetend(0, 1)) is not None
    schedule = valid(Schedule(problem, 6, time_orders(problem, 6, rows), 0.0, repetend=Repetend(3, 2)))
    with pytest.raises(ValueError, match="does not fit together"):
        unroll(schedule, 7)


@pytest.mark.parametrize("seed", [*range(4), *map(slow, range(4, 12))])
def test_the_period_that_one_whole_period_states_is_kept_when_it_is_repeated(seed: int) -> None:
    """However often it is put in again: one period may stand in several places, which keep different periods."""
    draw = random.Random(seed)
    plain = pipeline(chain(3))
    problem = replace(plain, devices=tuple(Device(f"gpu{d}", room) for d, room in enumerate((2, 2, 1))),
                      blocks=tuple(replace(block, duration=draw.randint(2, 5),
                                           after=tuple(replace(wait, lag=draw.randint(0, 4)) for wait in block.after))
                                   for block in plain.blocks))
    for micro_batches in (4, 5):
        schedule = solve(problem, micro_batches, effort=0.5)
        if schedule.repetend is None:
            continue
        step = schedule.repetend.micro_batches
        one = unroll(schedule, micro_batches - (schedule.repetend.count - 1) * step)
        some, more = (unroll(one, one.micro_batches + periods * step) for periods in (8, 16))
        assert some.period == one.period
        assert more.makespan - some.makespan == pytest.approx(8 * step * (one.period or 0.0))
