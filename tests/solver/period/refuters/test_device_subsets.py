"""Subsets of the devices: what some of them cannot do, all cannot; nothing that works is refuted."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.builders import chain, pipeline, v
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.params import PARAMETERS
from weft.solver.period.refuters import device_subsets
from weft.solver.period.refuters.device_subsets import DeviceSubsets
from weft.solver.period.search import find_period
from weft.solver.period.technique import Task
from weft.solver.problem import Problem
from weft.solver.ticks import TickProblem


def bracket_of(problem: Problem) -> Bracket:
    instance = TickProblem.of(problem)
    return Bracket(instance, Fraction(instance.heaviest_load), one_at_a_time(instance))


def side_by_side(part: Problem, count: int) -> Problem:
    """So many copies that have nothing to do with each other."""
    width = len(part.devices)
    return Problem("side by side", tuple(
        replace(device, name=f"{n}.{device.name}") for n in range(count) for device in part.devices), tuple(
        replace(block, name=f"{n}.{block.name}", devices=tuple(n * width + d for d in block.devices),
                after=tuple(replace(wait, block=f"{n}.{wait.block}") for wait in block.after))
        for n in range(count) for block in part.blocks))


def test_two_of_sixteen_devices_refute_what_they_cannot_do_and_nothing_else() -> None:
    """Distances taken for nothing, so that it is the model of the two that refutes."""
    part = pipeline(v(2), forward=2, backward=3, memory=3)
    alone = find_period(TickProblem.of(part), bracket_of(part).best, Budget(deterministic=5.0))
    assert alone.proven and alone.best.period == int(alone.best.period)
    least = int(alone.best.period)
    bracket = bracket_of(side_by_side(part, 8))
    refuter = DeviceSubsets.of(bracket, Task(least))
    assert refuter is not None
    time = Slice(Budget(), 60.0, 60.0)
    assert refuter.refutes([least - 1, least, least + 1], time) == [least - 1]


def test_shares_get_larger_until_there_is_none_left() -> None:
    bracket = bracket_of(pipeline(chain(16), memory=16))
    refuter = DeviceSubsets.of(bracket, Task(3))
    assert refuter is not None
    time = Slice(Budget(), 1.0, 1.0)
    assert [refuter.sharpen(time) for _ in PARAMETERS.subsets] == [True, True, False]
    assert refuter.exhausted and not refuter.ready(time)


@pytest.mark.parametrize(("devices", "most", "shares"), [(15, 256, None), (16, 256, 3), (16, 8, 2), (16, 4, 1),
                                                         (16, 3, None)])
def test_few_devices_and_large_models_have_no_subsets(devices: int, most: int, shares: int | None,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 blocks an eighth are 4, a quarter 8, half 16."""
    monkeypatch.setattr(device_subsets, "PARAMETERS", replace(PARAMETERS, most_blocks=most))
    refuter = DeviceSubsets.of(bracket_of(pipeline(chain(devices), memory=devices)), Task(3))
    assert (None if refuter is None else len(refuter._shares)) == shares
