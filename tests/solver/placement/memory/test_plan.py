"""What a memory plan means and costs, and problems that mean nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.memory_plans import operator
from weft.solver.placement.memory.plan import MemoryPlan, MemoryProblem, measure
from weft.solver.placement.memory.plan_memory import NoMemoryPlan, plan_memory
from weft.solver.placement.problem import PlacementError


def test_a_run_of_recomputed_operators_is_all_there_before_its_backward() -> None:
    ops = tuple(operator(f"op{k}", kept=10 + k, output=4, passing=3) for k in range(6))
    problem = MemoryProblem(ops, 1, 1000, copy_bandwidth=1e9, micro_batches=2)
    plan = MemoryPlan(problem, (0, 6), ("keep", "recompute", "recompute", "keep", "recompute", "offload"))
    found = measure(plan, 0)
    assert found.recompute_buffer == 11 + 12  # the longest of two runs
    assert found.activations == 1 * (10 + 13 + 3 + 3)  # kept, and what passes by where each run begins
    assert found.copy_buffer == 2 * 15 and found.copying == 2 * 15
    assert (found.device, found.recomputing) == (6 * 30 + 30, 30)
    counted = measure(replace(plan, problem=replace(problem, rules="published")), 0)
    assert (counted.recompute_buffer, counted.activations, counted.copy_buffer) == (14, 23, 30)


def test_room_for_copies_and_for_a_micro_batch_ahead_is_held() -> None:
    ops = tuple(operator(f"op{k}", kept=10, output=4) for k in range(4))
    problem = MemoryProblem(ops, 2, 1000, copy_bandwidth=1e9, copy_buffers=3, ahead=1)
    plan = MemoryPlan(problem, (0, 2, 4), ("keep", "offload", "keep", "keep"))
    first, last = plan.stages
    assert (first.in_flight, first.activations, first.copy_buffer) == (3, 30, 30)
    assert (last.in_flight, last.activations) == (1, 24)  # the last one has its backward at once


def test_a_stage_holds_what_it_receives() -> None:
    ops = (operator("a", output=7), operator("b", kept=5, resident=16))
    problem = MemoryProblem(ops, 2, 1000, 1e9, link_bandwidth=1e9)
    plan = MemoryPlan(problem, (0, 1, 2), ("keep", "keep"))
    last, only = measure(plan, 1), measure(MemoryPlan(replace(problem, stages=1), (0, 2), plan.modes), 0)
    assert (last.activations, last.link, last.resident) == (7 + 5, 7, 16)
    assert (only.activations, only.link) == (5, 0)


@pytest.mark.parametrize(("stages", "memory", "copy_bandwidth", "more", "said"), [
    (3, 100, 1e9, {}, "3 stages, use fewer"), (2, 100, 0, {}, "copy_bandwidth is 0"),
    (2, 100, 1e9, {"copy_buffers": 0}, "copy_buffers is 0, it must be 1 or more"),
    (2, 100, 1e9, {"ahead": -1}, "ahead is -1, it must be 0 or more"), (2, 100, 1e9, {"windows": ()}, "1 cuts"),
    (1, 99, 1e9, {}, "100 bytes, the largest of one operator 50")])
def test_refusals_say_what_is_wrong(stages: int, memory: int, copy_bandwidth: float, more: dict[str, Any],
                                    said: str) -> None:
    with pytest.raises(PlacementError if stages > 1 else NoMemoryPlan, match=said):
        plan_memory(MemoryProblem((operator("a", resident=50), operator("b", resident=50)), stages, memory,
                                  copy_bandwidth, **more))


def test_nothing_keeps_less_than_nothing() -> None:
    with pytest.raises(PlacementError, match="kept is -1"):
        operator("a", kept=-1)


def test_copies_of_many_bytes_are_counted_to_the_byte() -> None:
    """42e12 bytes at 2e9 a second, there and back, take 42e12 ns: floats lose the last one."""
    problem = MemoryProblem((operator("op"),), 1, 1, 2e9)
    assert problem.copy_time(42 * 10**12) == 42 * 10**12 and problem.copy_bytes(42 * 10**12) == 42 * 10**12
    for time in (10**15 + 1, 3 * 10**13 + 7):
        size = replace(problem, copy_bandwidth=1.2e10 / 7).copy_bytes(time)
        assert replace(problem, copy_bandwidth=1.2e10 / 7).copy_time(size) <= time
        assert replace(problem, copy_bandwidth=1.2e10 / 7).copy_time(size + 1) > time
