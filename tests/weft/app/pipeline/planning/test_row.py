"""Cuts that are proposed: several, the best for a schedule first, and such as fit the memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.row import STATE, Row, estimated_step, proposals, rank_of
from weft.runtime.measure.links import LinkCost


def machine(*memory: int | None, latency: float = 0.0) -> Machine:
    links = {hop: LinkCost(latency, 1e-9) for r in range(len(memory) - 1) for hop in ((r, r + 1), (r + 1, r))}
    return Machine(memory, ("chain",), ("full", "split"), links, None, ())


def row(seconds: list[float], kept: float = 0.0, weights: float = 0.0) -> Row:
    n = len(seconds)
    return Row(tuple(seconds), (None, *(8.0,) * (n - 1)), 1, (weights,) * n, (kept,) * n)


def judged(found: Row, where: Machine, micro_batches: int) -> list[tuple[tuple[int, ...], float]]:
    every = proposals(found, len(where.memory), where, micro_batches,
                      lambda places: estimated_step(found, places, where, micro_batches, "1f1b"))
    return [(places, estimated_step(found, places, where, micro_batches, "1f1b")) for places in every]


def test_several_cuts_are_proposed_and_the_best_for_the_schedule_comes_first() -> None:
    found = judged(row([1.0] * 24), machine(None, None, None), 4)
    assert len(found) > 2
    steps = [step for _, step in found]
    assert steps == sorted(steps) and steps[0] < steps[-1]


def test_of_cuts_that_measuring_does_not_tell_apart_the_one_with_the_fewest_bytes_comes_first() -> None:
    for late in (0.9, 1.0, 1.1):  # of many small operators around the middle, which one balances is chance
        way = replace(row([1.0] * 10 + [0.01] * 10 + [1.0] * 9 + [late]), sizes=(None, *(
            8.0 if i == 14 else 16.0 for i in range(1, 30))))
        assert judged(way, machine(None, None), 4)[0][0] == (14,)


def test_a_limit_of_memory_asks_for_smaller_first_stages() -> None:
    cheap, n = row([1.0] * 24, kept=10.0, weights=1.0), 6
    free, tight = machine(None, None), machine(24 * 10 + 12 * STATE + 4, 24 * 10 + 12 * STATE + 4)
    assert judged(cheap, free, n)[0][0][0] >= 12
    first = judged(cheap, tight, n)[0][0][0]
    assert 2 * 10 * first + STATE * first <= 24 * 10 + 12 * STATE + 4 < 2 * 10 * 13 + STATE * 13 and first < 13


def test_measured_stages_scale_their_operators() -> None:
    assert row([1.0, 1.0, 2.0, 2.0]).scaled((2,), (6.0, 2.0)).seconds == (3.0, 3.0, 1.0, 1.0)


def test_two_stages_a_rank_stand_in_a_v() -> None:
    assert [rank_of(s, 6, 3) for s in range(6)] == [0, 1, 2, 2, 1, 0] and [rank_of(s, 3, 3) for s in range(3)] == [
        0, 1, 2]
    way = row([1.0] * 24)
    assert estimated_step(way, (6, 12, 18), machine(None, None), 8, None) < float("inf")


def test_waits_for_messages_make_a_step_longer() -> None:
    way = row([1.0] * 8)
    near, far = machine(None, None), machine(None, None, latency=0.5)
    assert estimated_step(way, (4,), far, 4, "1f1b") >= estimated_step(way, (4,), near, 4, "1f1b") + 0.99
    assert far.seconds(1000, 0, 1) == pytest.approx(0.5 + 1e-6) and far.seconds(1000, 1, 1) == 0.0
    three = machine(None, None, None, latency=0.5)
    assert three.seconds(0, 2, 0) == pytest.approx(0.5) and three.seconds_a_byte == pytest.approx(1e-9)
