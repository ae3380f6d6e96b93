"""Interleaved schedules: any number of micro-batches, groups of any size, and with weight gradients put off.

p devices with v stages each, f and b = i + w the times of one stage.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support import loop, pipeline, slow, valid
from weft.solver import baseline, time_orders
from weft.solver.baselines.lib.alternating import TurnRule, groupings
from weft.solver.pipeline import Pipeline


def idle(devices: int, chunks: int, micro_batches: int, name: str, times: tuple[int, int, int]) -> set[float]:
    f, i, w = times
    schedule = baseline(name, pipeline(loop(devices, chunks), forward=f, split=(i, w)), micro_batches)
    return {schedule.makespan - sum(o.end - o.start for o in order) for order in schedule.device_orders}


@pytest.mark.parametrize("m", [4, 5, 6, 7, 9, 10, 13, 16])
@pytest.mark.parametrize("v", [2, 3, 4])
def test_any_number_of_micro_batches(v: int, m: int) -> None:
    """As little idle as with a multiple of the devices: (p - 1)(F + B) / v, where Megatron-LM and PyTorch refuse."""
    schedule = baseline("interleaved", pipeline(loop(4, v), forward=1, backward=2), m)
    assert {schedule.makespan - sum(o.end - o.start for o in order) for order in schedule.device_orders} == {3 * 3}


def test_the_order_of_groups_is_megatron_s() -> None:
    """Its documentation's table for two devices with two chunks, five micro-batches in groups of three."""
    stages = Pipeline.of(pipeline(loop(2))).stages
    row = TurnRule((3, 2), 2).row(0, 2, [(stages[0],), (stages[2],)], 5)
    forwards = [(block, m) for block, m in row if block in (stages[0].forward, stages[2].forward)]
    assert [m for _, m in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [block == stages[2].forward for block, _ in forwards] == [False] * 3 + [True] * 3 + [False] * 2 + [True] * 2
    ahead = next(place for place, (block, _) in enumerate(row) if block not in (stages[0].forward, stages[2].forward))
    assert ahead == (2 - 1) * 3 + 2 * (2 - 1) + 1


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("v", [2, 3])
def test_no_group_deadlocks(p: int, v: int) -> None:
    problem = pipeline(loop(p, v), split=(1, 1))
    found = Pipeline.of(problem)
    for m in (1, 2, 3, p, p + 1, 2 * p + 3):
        for groups in itertools.chain(*groupings(p, m)):
            for turns in (TurnRule(groups(m), 2), TurnRule(groups(m), 2, 1), TurnRule(groups(m), 1, put_off=p)):
                time_orders(problem, m, [turns.row(rank, p, [(found.stages[s],) for s in chunks], m)
                                         for rank, chunks in enumerate(found.chunks)])  # raises if they do


@pytest.mark.parametrize(("cap", "whole", "put_off"), [(23, 110, 103), (16, 110, 103), (12, 114, 110), (8, 292, 292),
                                                       (4, 415, 415)])
def test_smaller_groups_where_memory_is_short(cap: int, whole: int, put_off: int) -> None:
    """As published, the first device takes 2 p + p - 1 activations; one forward less ahead a device, 2 p; a group of
    one takes four."""
    problem = pipeline(loop(8), split=(1, 1), memory=cap)
    for name, makespan in (("interleaved", whole), ("interleaved-zb", put_off)):
        schedule = valid(baseline(name, problem, 16))
        assert schedule.makespan <= makespan


@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 1), (3, 2, 2), (5, 4, 3)])
@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 9), (8, 2, 16), (4, 4, 6)])
def test_weight_gradients_put_off(p: int, v: int, m: int, times: tuple[int, int, int]) -> None:
    """Idle (p - 1)(f + i - w), as ZB-H1 with stages of 1/v (Qi et al., ICLR 2024)."""
    f, i, w = times
    assert idle(p, v, m, "interleaved-zb", times) <= {(p - 1) * (f + i - w)}
    assert max(idle(p, v, m, "interleaved", times)) <= (p - 1) * (f + i + w)


@pytest.mark.parametrize(("memory", "m"), [(23, 997), slow(None, 997), slow(12, 997), slow(None, 1000), slow(23, 1000),
                                           slow(12, 1000)])
def test_long_runs_are_judged_by_short_ones(memory: int | None, m: int) -> None:
    schedule = valid(baseline("interleaved", pipeline(loop(8), split=(2, 2), forward=2, memory=memory), m))
    assert schedule.makespan <= (12 * m + 7 * 6) * (1.1 if memory == 12 else 1)
