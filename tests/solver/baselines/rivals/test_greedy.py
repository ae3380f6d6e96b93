"""List scheduling on any block graph: urgency by keys, and what the greedy baseline makes of it."""

from __future__ import annotations

from itertools import accumulate

import pytest

from tests.support import both_ways, chain, loop, pipeline, shape, v, valid
from weft.solver import Block, BlockKind, Dependency, Device, Link, Problem, Schedule, baseline, time_orders, validate
from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.priority_rule import fits_in_order, schedule_by_priority

INFINITY = float("inf")


def in_file_order(problem: Problem) -> list[float]:
    """Offsets of the blocks one after the other."""
    return [0.0, *accumulate(float(block.duration) for block in problem.blocks[:-1])]


@pytest.mark.parametrize("problem", [
    pipeline(v(3), forward=3, split=(2, 2), memory=4), pipeline(loop(3), memory=5), pipeline(chain(4), memory=2),
    shape("m", 4, 3), shape("nn", 4, 3), shape("k", 4, 3), both_ways(4, split=(1, 1), memory=3)],
    ids=["v", "loop", "chain", "m", "nn", "k", "both ways"])
@pytest.mark.parametrize("lead", [0.0, 5.0, INFINITY])
@pytest.mark.parametrize("reserve", [False, True])
def test_what_fits_in_the_order_of_its_keys_never_gets_stuck(problem: Problem, lead: float, reserve: bool) -> None:
    amounts, offsets, tried = Amounts.of(problem), in_file_order(problem), 0
    for interval in (2.0, 5.0, 9.0, 14.0, 30.0, 60.0):
        if not fits_in_order(problem, 9, offsets, interval, amounts):
            continue
        tried += 1
        made = schedule_by_priority(problem, 9, offsets, interval, lead, amounts, reserve=reserve)
        assert made is not None
        operations = time_orders(problem, 9, made[1])
        validate(Schedule(problem, 9, operations, 0.0))
        assert max(operation.end for operation in operations) <= made[0]
    assert tried


def test_without_a_lead_operations_run_in_the_order_of_their_keys() -> None:
    problem = pipeline(chain(3), memory=3)
    offsets = in_file_order(problem)
    made = schedule_by_priority(problem, 5, offsets, 3.0, 0.0, Amounts.of(problem))
    assert made is not None
    for row in made[1]:
        keys = [offsets[block] + 3.0 * m for block, m in row]
        assert keys == sorted(keys)


def test_a_block_on_several_devices_gets_its_turn() -> None:
    """Each device alone is busy for ever; a block on both starts only if one is kept free for it."""
    problem = Problem("p", (Device("a"), Device("b")), (
        Block("x", BlockKind.OTHER, (0,), 2), Block("y", BlockKind.OTHER, (1,), 3),
        Block("both", BlockKind.OTHER, (0, 1), 1)))
    amounts = Amounts.of(problem)

    def place_of_both(reserve: bool) -> int:
        made = schedule_by_priority(problem, 6, [1.0, 1.0, 2.0], 3.0, INFINITY, amounts, reserve=reserve)
        assert made is not None
        return made[1][0].index((2, 0))

    assert place_of_both(reserve=True) <= 2
    assert place_of_both(reserve=False) > 2


@pytest.mark.parametrize(("problem", "n", "share"), [
    (shape("k", 4, 8), 24, 1.05), (shape("k", 8, 16), 24, 1.1), (pipeline(v(4), split=(1, 1), memory=8), 32, 1.05),
    (pipeline(loop(4), memory=11), 24, 1.1), (both_ways(4, split=(1, 1), memory=5), 12, 1.02)])
def test_near_the_work_of_the_busiest_device_where_memory_allows(problem: Problem, n: int, share: float) -> None:
    schedule = valid(baseline("greedy", problem, n))
    work = max(sum(problem.blocks[i].duration for i in row) for row in problem.blocks_on)
    assert schedule.makespan <= share * n * work


def test_transfers_on_links_and_waits_across_micro_batches() -> None:
    problem = Problem("p", (Device("a", 3), Device("b", 3)), (
        Block("f0", BlockKind.FORWARD, (0,), 2, (1,)),
        Block("f1", BlockKind.FORWARD, (1,), 2, (1,), (), (Dependency("f0", 3, "a-b"), Dependency("f1", distance=1))),
        Block("b1", BlockKind.BACKWARD, (1,), 3, (-1,), (), (Dependency("f1"),)),
        Block("b0", BlockKind.BACKWARD, (0,), 3, (-1,), (), (Dependency("b1", 3, "b-a"),))),
        (Link("a-b", 0, 1), Link("b-a", 1, 0)))
    for n in (1, 7, 100):
        validate(baseline("greedy", problem, n))
    assert baseline("greedy", problem, 100).makespan < 100 * 16  # one at a time takes that


def test_a_memory_for_more_than_a_trial_has_is_filled() -> None:
    """100 stages, of which a trial has 20 micro-batches: 25 fit, and pass in two rounds of 300."""
    problem = pipeline(chain(100), memory=25)
    found = baseline("greedy", problem, 50)
    validate(found)
    assert 600 + 24 * 3 <= found.makespan <= 1.05 * (600 + 24 * 3)
