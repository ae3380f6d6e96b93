"""What every technique of the registries keeps to: nothing that the judge refuses, no bound above the optimum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.placements import best_load, chain, problems
from tests.support.placements import problems as chain_problems
from tests.support.replicated_stages import every_row, load
from tests.support.replicated_stages import problems as replicated
from tests.support.replicated_stages import problems as replicated_problems
from tests.support.stage_graphs import best_graph
from tests.support.stage_graphs import problems as graph_problems
from weft.solver import Budget, Infeasible
from weft.solver.placement import PlacementError, PlacementProblem, judge
from weft.solver.placement.bracket import BOUNDS, Placer, applying, simple_bound
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.chain.place import FIRST, ROUND, WHOLE
from weft.solver.placement.dag.graph_bracket import GraphBracket
from weft.solver.placement.dag.place_graph import WAYS
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.groups import Groups, groups_of, parts_of

CHAIN = tuple(dict.fromkeys((*FIRST, *WHOLE, *ROUND)))


def test_techniques_have_names_of_their_own() -> None:
    for registry in (CHAIN, WAYS):
        assert len({technique.name for technique in registry}) == len(registry)


def test_techniques_are_called_in_their_order_and_left_out_by_name() -> None:
    bracket = ChainBracket(chain([3, 1, 4]), Budget())
    assert [technique.name for technique in applying(FIRST, bracket)] == ["random slicings"]  # small: no packing
    assert [technique.name for technique in applying(ROUND, bracket)] == ["refinement", "threshold search"]
    assert [technique.name for technique in applying(ROUND, bracket, {"refinement"})] == ["threshold search"]


@pytest.mark.parametrize("technique", CHAIN, ids=lambda technique: technique.name)
@for_all(problem=chain_problems(), started=st.booleans(), tries=40)
def test_what_a_technique_finds_for_a_chain_stands_before_the_judge(
        technique: type[Placer[ChainBracket]], problem: PlacementProblem, started: bool) -> None:
    best = best_load(problem)
    try:
        bracket = ChainBracket(problem, Budget(deterministic=5.0))
        if started:
            bracket.run(applying(FIRST, bracket)[0], 1.0)
        if (one := technique.of(bracket)) is not None:
            bracket.run(one, 1.0)
    except Infeasible as refusal:
        assert best == float("inf"), refusal
        return
    assert bracket.bound <= best * (1 + 1e-9)
    assert bracket.objective >= best * (1 - 1e-9)
    assert bracket.best is None or not judge.breaches(problem, bracket.best)


@pytest.mark.parametrize("technique", WAYS, ids=lambda technique: technique.name)
@for_all(problem=graph_problems() | graph_problems(kinds=2) | replicated_problems(), tries=25)
def test_what_a_technique_finds_for_a_graph_stands_before_the_judge(
        technique: type[Placer[GraphBracket]], problem: PlacementProblem) -> None:
    if problem.degrees:
        rows = [stages_by_depth(problem, parts, on)[0] for parts, on in every_row(problem)]
        least = min((load(stages) for stages in rows if not judge.breaches(problem, stages)), default=float("inf"))
    else:
        known = best_graph(problem)
        least = float("inf") if known is None else known[0]
    try:
        bracket = GraphBracket(problem, Budget(deterministic=5.0), 0.0)
        if (one := technique.of(bracket)) is not None:
            bracket.run(one, 1.0)
    except Infeasible as refusal:
        assert least == float("inf"), refusal
        return
    except PlacementError:
        return  # replicated stages on several kinds
    assert bracket.bound <= least * (1 + 1e-9)
    assert bracket.objective >= least * (1 - 1e-9)
    if bracket.best is not None:
        devices = [stage.devices for stage in bracket.best]
        assert not judge.breaches(problem, stages_by_depth(problem, parts_of(bracket.best), devices)[0])


each = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)


@each
@for_all(problems(), tries=60)
def test_no_placement_is_below_a_bound(bound: Callable[[Groups], float], problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    assert bound(groups) <= min(best_load(problem) * (1 + 1e-9), simple_bound(groups))


@each
@for_all(replicated(), tries=30)
def test_no_placement_with_replicated_stages_is_below_a_bound(bound: Callable[[Groups], float],
                                                              problem: PlacementProblem) -> None:
    loads = [load(stages) for stages in (judge.stages_of(problem, parts, on) for parts, on in every_row(problem))
             if not judge.breaches(problem, stages)]
    assert bound(groups_of(problem)) <= min(loads, default=float("inf")) * (1 + 1e-9)
