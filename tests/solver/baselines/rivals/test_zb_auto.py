"""The automatic zero-bubble scheduler for one stage a device."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.builders import chain, pipeline, uneven, valid
from weft.solver import baseline, validate, violations


@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (5, 4, 3)])
@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_no_worse_than_the_handcrafted_ones_that_fit(p: int, f: int, i: int, w: int) -> None:
    """ZB-H1 at the memory of 1F1B, ZB-H2 at about twice that."""
    for m in (p, 4 * p + 1):
        for cap in (p, 2 * p - 1, None):
            problem = pipeline(chain(p), forward=f, split=(i, w), memory=cap)
            own = valid(baseline("zb-auto", problem, m))
            rivals = [baseline(name, problem, m) for name in ("1f1b", "zb-h1", "zb-h2")]
            assert own.makespan <= min(rival.makespan for rival in rivals if not violations(rival, limit=1))


def test_no_bubble_with_ample_memory_and_equal_times() -> None:
    """The published case: F = I = W, memory for 2p - 1 micro-batches, no device idle within its span."""
    schedule = baseline("zb-auto", pipeline(chain(8), split=(1, 1), memory=15), 24)
    assert all(order[-1].end - order[0].start == 24 * 3 for order in schedule.device_orders)


@pytest.mark.parametrize("seed", range(8))
def test_own_costs_own_memory(seed: int) -> None:
    chance = random.Random(seed)
    problem = uneven(pipeline(chain(4), split=(1, 1)), chance, 9, 3)
    devices = tuple(replace(device, memory=chance.randint(1, 6)) for device in problem.devices)
    blocks = tuple(replace(block, workspace=(0.25,)) if block.name.startswith("b") else block
                   for block in problem.blocks)
    problem = replace(problem, devices=tuple(replace(device, memory=(device.memory or 0) + 0.25)
                                             for device in devices), blocks=blocks)
    validate(baseline("zb-auto", problem, 9))


def test_many_micro_batches_repeat() -> None:
    schedule = valid(baseline("zb-auto", pipeline(chain(4), split=(1, 1), memory=4), 500))
    assert schedule.makespan == 500 * 3 + 3
