"""Single stages of a memory plan."""

from __future__ import annotations

from tests.support.memory_plans import GPT, profiled
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.memory.plan_memory import plan_memory
from weft.solver.placement.memory.stage_oracle import StageOracle


def test_what_was_shown_is_recalled_when_no_time_is_left() -> None:
    """Stages whose lightest choice is no longer searched keep the choice, or part of it, by which they fit."""
    problem = profiled(GPT, 8)
    budget = Budget()
    oracle = StageOracle(problem, budget)
    limit = plan_memory(problem).time
    assert oracle.fits(0, 0, 81, limit)
    budget.seconds = 0.0
    for last in (81, 80, 60):
        choice = oracle.lightest(0, 0, last, limit)
        assert oracle.saved(0, 0, last, choice) >= oracle.excess(0, 0, last)
        assert (choice.recompute * oracle.classes.forward).sum() <= oracle.spare_time(0, last, limit)
