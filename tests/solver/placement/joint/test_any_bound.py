"""The bound on the step of any graph of stages, against all graphs, all sizes and the best order of each."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume

from tests.support.examples import for_all
from tests.support.sized_stages import best_step, every_choice, every_cut, sized_problems
from tests.support.stage_graphs import forks
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.joint.any_bound import any_bound
from weft.solver.placement.joint.sized import SizedProblem, affine


@for_all(sized_problems(), tries=25)
def test_no_graph_has_a_shorter_step(sized: SizedProblem) -> None:
    least = min(best_step(cut, sizes) for cut in every_cut(sized) for sizes in every_choice(cut))
    assume(least < math.inf)
    assert any_bound(sized, Budget(), 3 * least) <= least * (1 + 1e-9)


def test_equal_operators_in_a_row_meet_it() -> None:
    """Four samples on three stages of 4: two of them fill and drain, and size 2 costs nothing less a sample."""
    sized = affine(forks(1, 2, devices=3, times=(4.0,), end=4.0), 1, (1, 2), 0.0, 4)
    assert any_bound(sized, Budget(), 100.0) == pytest.approx((4 + 2) * 4, rel=0.01)
