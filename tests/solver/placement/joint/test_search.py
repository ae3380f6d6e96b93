"""Graph, sizes and order searched together, against all graphs, all sizes and the best order of each."""

from __future__ import annotations

import math

import pytest

from tests.support.examples import for_all
from tests.support.sized_stages import best_step, every_choice, every_cut, sized_problems
from tests.support.stage_graphs import forks
from weft.solver import Budget, Infeasible, NoneFound, violations
from weft.solver.placement.dag.front import front
from weft.solver.placement.joint.cuts import cut_of
from weft.solver.placement.joint.search import place_step
from weft.solver.placement.joint.sized import SizedProblem, affine
from weft.solver.placement.refusals import NoPlacement


@for_all(sized_problems(), tries=12)
def test_no_bound_is_above_what_trying_everything_finds(sized: SizedProblem) -> None:
    best = {cut: min(best_step(cut, sizes) for sizes in every_choice(cut)) for cut in every_cut(sized)}
    least = min(best.values())
    try:
        found = place_step(sized, effort=5.0)
    except NoneFound:
        return
    except (NoPlacement, Infeasible):
        assert least == math.inf
        return
    assert found.makespan >= least * (1 - 1e-9)
    assert found.any_bound <= least * (1 + 1e-9)
    assert found.any_bound * (1 - 1e-9) <= found.bound <= found.makespan
    if found.status == "optimal":  # of the graphs considered; the answer's own is one of them
        assert found.makespan <= best[found.cut] * (1 + 1e-6)
    assert found.at_one_size is None or found.makespan <= found.at_one_size * (1 + 1e-9)
    assert not violations(found.schedule)


def test_one_size_and_ample_memory_is_the_best_of_all_graphs() -> None:
    """Enough devices for each operator: the search finds what trying everything finds."""
    sized = affine(forks(2, 1, devices=3, times=(2.0,), end=3.0), 1, (1,), 0.0, 3)
    found = place_step(sized, effort=5.0)
    assert found.makespan == min(best_step(cut, (1,) * len(cut.parts)) for cut in every_cut(sized))
    assert found.status == "optimal"


def test_stages_with_much_to_keep_run_smaller_micro_batches_than_the_others() -> None:
    """Small ones cost more a sample: the last stage, which is one deep and has most to do, runs larger ones."""
    problem = forks(2, 2, devices=5, times=(4.0,), end=5.0, held=1.0, memory=10.0)
    sized = affine(problem, 1, (1, 2, 4), 2.0, 16)
    found = place_step(sized, effort=5.0)
    assert found.sizes == (2, 2, 2, 2, 4)
    assert [found.makespan, found.at_one_size] == pytest.approx([74.0, 76.0])
    assert found.status == "optimal"
    assert max(found.schedule.peak_memory) <= 10.0
    answer = found.to_json()
    assert [stage["micro_batch"] for stage in answer["stages"]] == list(found.sizes)
    assert sum(len(stage["nodes"]) for stage in answer["stages"]) == 5
    assert "any of the sizes 1, 2, 4 for each stage" in answer["covered"]


def test_several_placements_are_not_worse_than_the_one_of_least_load() -> None:
    sized = affine(forks(2, 3, devices=3, times=(2.0, 2.0, 3.0), end=1.0), 1, (1,), 0.0, 2)
    least, = front(sized.any, Budget(deterministic=5.0), math.inf, first=True).points
    cut = cut_of(sized, least.parts, least.devices)
    several = place_step(sized, effort=5.0)
    assert len(several.considered) > 1
    # Two micro-batches: depth counts for more than load.
    assert several.makespan < min(best_step(cut, sizes) for sizes in every_choice(cut))


def test_one_size_for_all_is_what_the_executor_runs() -> None:
    problem = forks(2, 2, devices=5, times=(4.0,), end=5.0, held=1.0, memory=10.0)
    found = place_step(affine(problem, 1, (1, 2, 4), 2.0, 16), one_size=True, effort=5.0)
    assert len(set(found.sizes)) == 1 and found.makespan == pytest.approx(76.0)
    assert found.status == "optimal" and "any of the sizes 1, 2, 4 for all stages" in found.covered


def test_a_search_without_time_gives_a_judged_step_with_a_true_bound() -> None:
    sized = affine(forks(2, 2, devices=5, times=(4.0,), end=5.0, held=1.0, memory=10.0), 1, (1, 2, 4), 2.0, 16)
    found = place_step(sized, time_limit=1e-3)
    assert not violations(found.schedule)
    assert found.bound <= 74.0 * (1 + 1e-9) and found.any_bound <= found.bound
    assert found.schedule.makespan_bound <= found.makespan


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(NoPlacement, match="no graph of stages fits"):
        place_step(affine(forks(2, 1, devices=3, held=3.0, memory=2.0), 1, (1, 2), 0.0, 4), effort=1.0)
