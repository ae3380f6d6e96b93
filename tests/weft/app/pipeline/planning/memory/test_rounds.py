"""Plans are made for less until what is measured fits, and for more where it leaves room."""

from __future__ import annotations

from collections.abc import Callable

from weft.app.pipeline.planning.memory.planned import fullest
from weft.app.pipeline.planning.memory.rounds import ROUNDS, MemoryRounds
from weft.solver.placement.memory.plan import ChainOperator, MemoryPlan, MemoryProblem
from weft.solver.placement.memory.plan_memory import NoMemoryPlan, plan_memory

OPERATORS = tuple(ChainOperator(f"operator {i}", 10, 20, 100, 10) for i in range(8))


def measured(rounds: MemoryRounds, peak: Callable[[MemoryPlan], int]) -> list[int]:
    """The peaks of all plans."""
    found = []
    while (plan := rounds.following()) is not None:
        found.append(peak(plan))
        rounds.learn(found[-1])
    return found


def planned(memory: int) -> MemoryPlan:
    return plan_memory(MemoryProblem(OPERATORS, 2, memory, 1e9, modes=frozenset({"recompute"})))


def held(plan: MemoryPlan) -> int:
    return max(stage.memory for stage in plan.stages)


def test_a_plan_that_needs_more_than_it_says_is_made_again_for_less() -> None:
    found = measured(MemoryRounds(planned, 700), lambda plan: held(plan) + 90)
    assert found[0] > 700 and found[-1] <= 700 and len(found) < ROUNDS


def test_a_plan_of_which_no_schedule_fits_is_made_again_for_less() -> None:
    """Of 1F1B's peak alone it seemed to fit, and was the last one tried."""
    plans = []

    def peak(plan: MemoryPlan) -> int:
        plans.append(plan)
        return fullest([held(plan)], [700], ran=held(plan) <= 660)

    measured(MemoryRounds(planned, 700), peak)
    assert 660 < held(plans[0]) <= 700 and held(plans[-1]) <= 660 and len(plans) < ROUNDS


def test_a_plan_that_leaves_room_is_made_again_for_more() -> None:
    found = measured(MemoryRounds(planned, 700), lambda plan: held(plan) // 2)
    assert found[0] < found[-1] <= 700


def test_it_ends_with_the_first_that_keeps_all_or_fills_what_there_is() -> None:
    assert len(measured(MemoryRounds(planned, 5000), held)) == 1
    assert len(measured(MemoryRounds(planned, 700), lambda plan: 690)) == 1


def test_where_there_is_no_plan_the_first_reason_counts() -> None:
    rounds = MemoryRounds(planned, 10)
    assert rounds.following() is None and isinstance(rounds.reason, NoMemoryPlan)
    assert "fits into 10 bytes" in str(rounds.reason) and not rounds.tried
