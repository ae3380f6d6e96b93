"""Plans as block problems: every part in one block, waits as the plan's, memory never less than parts hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations

import pytest

from experiments.lib.published_plans import PLANS
from tests.support.programs import attention, experts, mlp, random_plan, transformer
from weft.models.transform.as_blocks.problem import PlanBlocks, Pricing, plan_blocks
from weft.models.transform.auditing import breaches
from weft.models.transform.plan import Preserved, TransformPlan
from weft.models.transform.program import PlanError, PlanProgram
from weft.plans import GivenCosts, Part, uniform, with_update
from weft.solver import Problem, Schedule, solve, violations
from weft.solver.timing import DeadlockError, time_orders

ALIKE = Pricing(GivenCosts({}, 1.0))


def times(blocks: PlanBlocks, schedule: Schedule) -> dict[Part, tuple[float, float]]:
    return {part: (one.start, one.end) for one in schedule.operations
            for part in blocks.block_of(one.block, one.micro_batch).parts}


def require_sound(done: Preserved, pricing: Pricing) -> None:
    blocks = plan_blocks(done, pricing)
    parts = [part for block in blocks.blocks for part in block.parts]
    assert sorted(parts) == sorted(done.order)
    sent = sorted(i for block in blocks.blocks for i in block.joined)
    assert sent == [i for i, entry in enumerate(done.joined) if not entry.silent]
    schedule = blocks.written
    assert not violations(schedule)
    assert not breaches(done.planned, times(blocks, schedule))
    assert all(held >= 0 for held in schedule.peak_memory)


@pytest.mark.parametrize("model", [mlp, transformer, attention, experts])
@pytest.mark.parametrize("pricing", [ALIKE, Pricing(GivenCosts({}, 1.0), overlap=False, split_backward=False, grain=3)])
def test_random_plans_are_blocks_that_keep_what_their_parts_wait_for(model: Callable[[], PlanProgram],
                                                                    pricing: Pricing) -> None:
    draw = random.Random(model.__name__)
    for _ in range(2):
        plan = random_plan(model(), draw)
        done = plan.preserve(uniform(0.1, 1e3))
        try:
            require_sound(done, pricing)
        except PlanError as error:
            assert "different orders" in str(error)


def test_devices_that_work_together_in_different_orders_are_no_blocks() -> None:
    plan = TransformPlan(mlp()).split("up bias act down residual loss", "b", 2).assign("*", (0, 1))
    plan.order(("d(w1) by up.1", 0), ("d(x) by up.0", 0)).order(("d(x) by up.0", 1), ("d(w1) by up.1", 1))
    with pytest.raises(PlanError, match="run them in different orders"):
        plan_blocks(plan.preserve(), ALIKE)


@pytest.mark.parametrize("name", ["3f1b", "co-shard"])
def test_memory_is_never_less_than_what_parts_hold(name: str) -> None:
    done = PLANS[name].plan("1f1b").preserve()
    schedule = plan_blocks(done, ALIKE).written
    for device, held in done.peaks.items():
        assert schedule.peak_memory[device] >= held


def test_a_device_has_room_for_its_weights_or_the_plan_is_refused() -> None:
    done = TransformPlan(mlp()).assign("*", 0).preserve()
    weights = 8 * (8 * 16 + 16 + 16 * 8)
    room = plan_blocks(done, Pricing(GivenCosts({}, 1.0), memory=weights + 1)).problem.devices[0]
    assert (room.memory, room.static) == (1, weights)
    with pytest.raises(PlanError, match=f"device 0 has 10 bytes, its parameters and states take {weights}"):
        plan_blocks(done, Pricing(GivenCosts({}, 1.0), memory=10))
    with pytest.raises(PlanError, match="memory is of 2 devices, the plan uses 1"):
        plan_blocks(done, Pricing(GivenCosts({}, 1.0), memory=(10**6, 10**6)))


def test_finer_blocks_let_gradients_be_summed_beside_the_backward() -> None:
    program = with_update(mlp(), "sgd", rate=0.1)
    plan = TransformPlan(program).split("up bias act down residual loss", "b", 2).assign("*", (0, 1))
    done = plan.preserve(uniform(2.0, 1e12))
    coarse, fine = (plan_blocks(done, Pricing(GivenCosts({}, 1.0), grain=grain)).written for grain in (None, 1))
    assert fine.makespan < coarse.makespan


def test_micro_batches_in_turn_lose_no_schedule() -> None:
    """Every order of two devices' blocks against those that keep micro-batches in turn: the best is as good."""
    def stages(micro_batches: int) -> TransformPlan:
        return TransformPlan(mlp()).pipeline(["up bias act", "down residual loss"], [0, 1], "b", micro_batches,
                                             schedule="open")

    costs = {"up": 3.0, "down": 1.0, "d(*": 0.5}
    done = stages(2).preserve(uniform(0.5, 1e12))
    pricing = Pricing(GivenCosts(costs, 0.25), split_backward=False)
    ordered = plan_blocks(done, pricing).problem
    assert any("#1" in block.name and any(wait.block == block.name.replace("#1", "#0") for wait in block.after)
               for block in ordered.blocks)
    free = Problem(ordered.name, ordered.devices, tuple(
        type(block)(block.name, block.kind, block.devices, block.duration, block.memory, block.workspace,
                    tuple(wait for wait in block.after if wait.block != block.name.replace("#1", "#0")))
        for block in ordered.blocks))
    assert least(ordered) == pytest.approx(least(free))
    found = solve(ordered, 1, effort=1.0)
    assert found.makespan == pytest.approx(least(free)) == found.makespan_bound


def least(problem: Problem) -> float:
    """The least makespan over all orders of all devices; those of lanes follow what they wait for."""
    best = float("inf")
    rows = problem.blocks_on
    lanes = [sorted(row, key=problem.topological_order.index) for row in rows]
    for first in permutations(rows[0]):
        for second in permutations(rows[1]):
            for way in (0, 1):
                orders = [[(i, 0) for i in row] for row in (first, second, *(
                    (lane if way == 0 else lane[::-1]) for lane in lanes[2:]))]
                try:
                    best = min(best, max(one.end for one in time_orders(problem, 1, orders)))
                except DeadlockError:
                    continue
    return best
