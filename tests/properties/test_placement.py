"""Placements against all placements of small problems: the optimum, every reduction, every bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.placements import best_load, every_placement, problems
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import PlacementProblem, judge, place
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.chain.constructions.random_slicings import best_slicing
from weft.solver.placement.chain.constructions.refinement import around, near_cuts, refine
from weft.solver.placement.chain.constructions.threshold_search import excess_needed
from weft.solver.placement.encoding.least_load import least_bottleneck
from weft.solver.placement.groups import Division, Groups, groups_of
from weft.solver.placement.params import PARAMS
from weft.solver.placement.reductions.coarsen import coarsen
from weft.solver.placement.reductions.cutoff import keep_dear_nets_whole, without_slow_kinds
from weft.solver.placement.reductions.fold import fold
from weft.solver.placement.reductions.interchangeable import order_twins
from weft.solver.placement.refusals import NoPlacement, refuse_infeasible
from weft.solver.placement.stage_windows import windows_of

CLOSE = pytest.approx


def sliced(problem: PlacementProblem, groups: Groups) -> Division:
    found = best_slicing(groups, Budget(), orders=4)
    assume(found is not None)
    assert found is not None
    return found


@for_all(problems(), st.sampled_from(("cutoff", "total", "windows")), tries=60)
def test_no_part_of_the_encoding_is_needed_for_the_optimum(problem: PlacementProblem, part: str) -> None:
    groups = groups_of(problem)
    solved = least_bottleneck(groups, Budget(), None, 0.0, without={part})
    best = best_load(problem)
    assert solved.proven
    assert solved.infeasible == (best == float("inf"))
    if solved.stages is not None:
        assert solved.stages.value == CLOSE(best)
        again = least_bottleneck(groups, Budget(), solved.stages, 0.0, without={part})
        assert again.proven and again.bound == CLOSE(best)


@for_all(problems(), tries=75)
def test_folding_keeps_an_optimum(problem: PlacementProblem) -> None:
    assert best_load(problem, fold(groups_of(problem))) == CLOSE(best_load(problem))


@for_all(problems(), tries=50)
def test_what_a_cutoff_rules_out_is_not_needed_within_it(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    best = best_load(problem)
    for cutoff in (best, sliced(problem, groups).value):
        slimmer = keep_dear_nets_whole(without_slow_kinds(groups, cutoff), cutoff)
        assert best_load(problem, slimmer) == CLOSE(best)


@for_all(problems(), tries=50)
def test_twins_may_stand_in_any_order(problem: PlacementProblem) -> None:
    assert best_load(problem, order_twins(groups_of(problem))) == CLOSE(best_load(problem))


@for_all(problems(), tries=60)
def test_windows_hold_every_placement_within_the_cutoff(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    stages = min(problem.devices, groups.count)
    best = best_load(problem)
    assume(best < float("inf"))
    windows = windows_of(groups, stages, best)
    for placement in every_placement(problem):
        if max(stage.load for stage in placement) <= best * (1 + 1e-12):
            offset = stages - len(placement)
            for group, members in enumerate(groups.members):
                at = next(s for s, stage in enumerate(placement) if members[0] in stage.nodes)
                assert windows.first[group] <= at <= at + offset <= windows.last[group]


@for_all(problems(), tries=60)
def test_bounds_and_slicings_lie_on_either_side(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    best = best_load(problem)
    assume(best < float("inf"))
    assert simple_bound(groups) <= best * (1 + 1e-9)
    for level in (groups, coarsen(groups, 2, 1, replace(PARAMS, coarse_parts=1))):
        found = best_slicing(level, Budget(), orders=3)
        if found is not None:
            stages = judge.stages_of(problem, [(kind, [node for g in inside for node in level.members[g]])
                                               for kind, inside in found.stages])
            assert not judge.breaches(problem, stages)
            assert max(stage.load for stage in stages) == CLOSE(found.value)
            assert found.value >= best * (1 - 1e-9)


@for_all(problems(tight=False), tries=40)
def test_refining_never_makes_worse_and_keeps_its_start_possible(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    start = sliced(problem, groups)
    offset = min(problem.devices, groups.count) - len(start.stages)
    for windows in (near_cuts(groups, start, 0.2 * start.value), around(groups, start, 0, 2)):
        for stage, (_, inside) in enumerate(start.stages):
            for group in inside:
                assert windows.first[group] <= stage + offset <= windows.last[group]
    assert best_load(problem) * (1 - 1e-9) <= refine(groups, start, Budget(), 0.0, each=1).value <= start.value


@for_all(problems(tight=False), tries=40)
def test_latency_is_least_among_the_best(problem: PlacementProblem) -> None:
    found = place(problem, effort=5, latency=True)
    best = best_load(problem)
    least = min(judge.latency_of(problem, stages) for stages in every_placement(problem)
                if max(stage.load for stage in stages) <= best * (1 + 1e-9))
    assert found.objective == CLOSE(best)
    assert found.latency == CLOSE(least, rel=1e-6)
    assert found.latency_bound is not None and found.latency_bound <= least * (1 + 1e-6)


@for_all(problems(cpus=False, memory=(1, 5)), tries=40)
def test_the_memory_said_to_be_missing_is_what_is_missing(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    assume(best_load(problem) == float("inf"))
    try:
        refuse_infeasible(groups)
    except NoPlacement as error:
        assert "n" in str(error)
        return
    found = excess_needed(groups, Budget())
    assert found is not None
    missing = found[0]

    def with_more(more: float) -> PlacementProblem:
        return replace(problem, kinds=tuple(
            kind if kind.memory is None else replace(kind, memory=kind.memory + more) for kind in problem.kinds))

    assert best_load(with_more(missing)) < float("inf")
    assert best_load(with_more(missing - 1)) == float("inf")
