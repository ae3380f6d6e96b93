"""Devices on which nothing runs: they change nothing, however many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import REPROS, loop, pipeline, slow, v, valid
from weft.solver import Device, Problem, load_problem, solve, validate


def with_idle(problem: Problem, every: int) -> Problem:
    """``problem`` with so many idle devices, some with memory and some without, before each of its own."""
    devices: list[Device] = []
    place = []
    for device in problem.devices:
        devices += [Device(f"idle {device.name} {i}", (None, 0, 4)[i % 3]) for i in range(every)]
        place.append(len(devices))
        devices.append(device)
    return replace(problem, devices=tuple(devices), blocks=tuple(
        replace(block, devices=tuple(place[d] for d in block.devices)) for block in problem.blocks))


def test_half_of_sixteen_devices_idle() -> None:
    schedule = valid(solve(load_problem(REPROS / "idle-devices.json"), 6, effort=5))
    assert (schedule.makespan, schedule.status) == (352, "optimal")


@pytest.mark.parametrize("shape", [v(2), slow(v(3)), loop(2)])
def test_idle_devices_change_no_answer(shape: list[int]) -> None:
    """Uneven stages, so that periods are refuted in all ways there are."""
    uneven = pipeline(shape, memory=3, lag=0.5)
    uneven = replace(uneven, blocks=tuple(replace(block, duration=1 + 7 * i % 5)
                                          for i, block in enumerate(uneven.blocks)))
    alone, among = solve(uneven, 6, effort=1), solve(with_idle(uneven, 8), 6, effort=1)
    validate(among)
    assert among.makespan_bound <= alone.makespan + 1e-9
    assert alone.makespan_bound <= among.makespan + 1e-9
    assert among.solver["repetend_period_bound"] <= alone.solver["repetend_period"] + 1e-9
