"""Placements against oracles that share nothing with the solver, on costs that are hard to count: zeros, ties, a
millionth beside a million, thirds; one operator, more devices than operators, unequal memory that just fits or not.

``WEFT_EXAMPLES`` says how many problems each property tries (default: a few seconds' worth).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import assume, example
from hypothesis import strategies as st

import weft
from tests.oracles.placements import best, every_graph, every_row
from tests.support.examples import for_all
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.placement import place, place_graph
from weft.solver.placement.bracket import Standing
from weft.solver.placement.placement import Placement, meets
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementProblem, PlacementTensor

EFFORT = 8.0
many = int(os.environ.get("WEFT_EXAMPLES", "60"))

#: What one kind of cost is drawn from.
AMOUNTS = ((0.0, 1.0, 2.0, 3.0, 6.0), (0.0, 0.1, 0.2, 0.3, 1 / 3), (0.0, 1e-6, 1.0, 1e6), (1e-6, 2e-6, 1e6, 3e6),
           (1e-12, 1.0, 1e12), (0.0,), (0.0, 1e-90, 1e90))


@st.composite
def problems(draw: st.DrawFn, *, kinds: int, most: int = 4, replicated: bool = False) -> PlacementProblem:
    """Up to five operators on one kind of device, up to four on two, in training or not."""
    count = draw(st.integers(1, 5 if kinds == 1 else 4))
    times, held, sent = (st.sampled_from(draw(st.sampled_from(AMOUNTS))) for _ in range(3))
    backward = draw(st.integers(1, count))
    nodes = []
    for i in range(count):
        row: list[float | None] = [draw(times) for _ in range(kinds)]
        if kinds > 1 and draw(st.integers(0, 7)) == 0:
            row[draw(st.integers(0, kinds - 1))] = None
        nodes.append(Node(f"n{i}", tuple(row), draw(held), draw(held) if draw(st.booleans()) else 0.0,
                          draw(st.sampled_from((None, None, None, "a", "b"))), i >= backward,
                          gradient=draw(st.integers(0, 3)) if replicated else 0.0))
    amounts = sorted(node.resident + node.per_micro_batch for node in nodes)
    memory = st.sampled_from((None, sum(amounts), sum(amounts) / 2, amounts[-1], sum(amounts[:2]), 0.7 * sum(amounts)))
    devices = tuple(DeviceKind(f"k{k}", draw(st.integers(0 if k else 1, most)), draw(memory),
                               draw(st.sampled_from((1.0, 1.0, 0.0, 0.5)))) for k in range(kinds))
    tensors = []
    for i in range(count - 1):
        targets = tuple(t for t in range(i + 1, count) if draw(st.integers(0, 2)) == 0)
        if targets:
            tensors.append(PlacementTensor(i, targets, draw(sent)))
    rate, all_reduce = draw(st.sampled_from((1.0, 0.75, 0.3))), draw(st.sampled_from((0.0, 0.5, 6.0)))
    degrees = tuple(Degree(r, tuple(tuple(None if time is None else time / r / rate for time in node.times)
                                    for node in nodes), all_reduce)
                    for r in (sorted(draw(st.sets(st.sampled_from((2, 3, 4)), min_size=1))) if replicated else ()))
    try:
        return PlacementProblem("hard", devices, tuple(nodes), tuple(tensors),
                                draw(st.integers(1, 3) if replicated else st.none() | st.integers(1, 3)),
                                degrees=degrees)
    except PlacementError:  # a class of operators that share no kind
        assume(False)
        raise


def check(found: Placement, least: float) -> None:
    """What every placement must say of the least largest load."""
    assert found.bound <= least * (1 + 1e-9)
    assert found.objective >= least * (1 - 1e-9)
    assert (found.status == "optimal") <= meets(found.objective, found.bound)


@for_all(st.integers(1, 2).flatmap(lambda kinds: problems(kinds=kinds, most=4 if kinds == 1 else 2)), tries=many)
def test_stages_in_a_row_are_the_best_of_all_or_proven_impossible(problem: PlacementProblem) -> None:
    answer = best(every_row(problem))
    try:
        found = place(problem, effort=EFFORT)
    except NoneFound:
        pytest.fail("found nothing, and nothing is proven")
    except Infeasible as refusal:
        assert answer is None, refusal
        return
    assert answer is not None
    check(found, float(answer[0]))
    assert found.status == "optimal"


def check_graph(problem: PlacementProblem, slack: float, *, exact: bool) -> None:
    answer = best(every_graph(problem), slack)
    try:
        found = place_graph(problem, slack=slack, effort=EFFORT)
    except NoneFound:
        pytest.fail("found nothing, and nothing is proven")
    except Infeasible as refusal:
        assert answer is None, refusal
        return
    assert answer is not None
    least, depth = float(answer[0]), answer[1]
    check(found, least)
    if exact or found.status == "optimal":
        assert meets(found.least, found.bound)
        assert found.limit == pytest.approx(least * (1 + slack), rel=2e-6)  # the slack is above the true least
        assert meets(found.objective, found.limit)
        assert found.depth == found.depth_bound == depth
    assert found.depth_bound <= depth or found.least > least * (1 + 2e-6)


@for_all(problems(kinds=1), st.sampled_from((0.0, 0.0, 0.1, 0.3)), tries=many)
def test_graphs_of_stages_by_levels_are_the_best_and_shallowest_of_all(problem: PlacementProblem, slack: float) -> None:
    check_graph(problem, slack, exact=True)


@for_all(problems(kinds=2, most=2), st.sampled_from((0.0, 0.0, 0.1, 0.3)), tries=many)
def test_graphs_of_stages_by_the_encoding_are_the_best_and_shallowest_of_all(problem: PlacementProblem,
                                                                           slack: float) -> None:
    check_graph(problem, slack, exact=True)


@for_all(problems(kinds=1, replicated=True), st.sampled_from((0.0, 0.0, 0.1, 0.3)), tries=many)
def test_graphs_of_replicated_stages_say_no_more_than_is_true(problem: PlacementProblem, slack: float) -> None:
    """Backward tensors beside the forward graph leave only rows of a few orders, which prove less."""
    check_graph(problem, slack, exact=False)


# -- what was wrong ------------------------------------------------------------------------------------------------


def test_a_graph_whose_least_load_is_nothing_has_that_load() -> None:
    """n0 on k0 and n1 on k1 take no time: any cost at all is above a limit of 0."""
    problem = PlacementProblem("t", (DeviceKind("k0", 3, 6, 1), DeviceKind("k1", 3, 10, 0)),
                               (Node("n0", (0, None), 0, 2), Node("n1", (1, 0), 1, 1)), (PlacementTensor(0, (1,), 0),))
    found = weft.place(problem, stage_graph=True, effort=EFFORT)
    assert (found.objective, found.bound, found.status) == (0.0, 0.0, "optimal")


@pytest.mark.parametrize("bound", [0.0, 1e-300, 1e-6, 1.0])
def test_what_is_called_optimal_meets_its_bound(bound: float) -> None:
    problem = PlacementProblem("t", (DeviceKind("gpu", 1),), (Node("n", (1.0,)),), ())
    assert [Placement(problem, (), objective, 0.0, bound).status for objective in
            (bound, bound * (1 + 0.9e-6), bound * (1 + 1.1e-6) + 5e-324, bound + 1.0)] == [
                "optimal", "optimal", "feasible", "feasible"]


def test_a_slack_is_above_the_least_that_memory_by_depth_allows() -> None:
    """With one micro-batch in flight the least load is 5; memory by depth leaves 6, which 30 % are above."""
    nodes = tuple(Node(f"n{i}", times, 0.0, held) for i, (times, held) in enumerate((
        ((3.0, 1.0), 2.0), ((5.0, 4.0), 1.0), ((4.0, 1.0), 0.0))))
    problem = PlacementProblem("t", (DeviceKind("a", 1, 2.0), DeviceKind("b", 1, 4.0)), nodes,
                               (PlacementTensor(0, (1,)), PlacementTensor(1, (2,))))
    assert best(every_graph(problem), 0.3) == (Fraction(6), 1)
    assert best(every_graph(dataclasses.replace(problem, micro_batches=1))) == (Fraction(5), 2)
    found = place_graph(problem, slack=0.3, effort=EFFORT)
    assert (found.least, found.depth) == (6.0, 1)
    assert found.limit == pytest.approx(7.8)


def test_amounts_that_cannot_be_added_up_are_refused() -> None:
    with pytest.raises(PlacementError, match=r"'a': time is 1e.300, it must be a finite number of at most 1e.1"):
        PlacementProblem("t", (DeviceKind("gpu", 1),), (Node("a", (1e300,)), Node("b", (1e300,))), ())


# -- searches that are stopped ---------------------------------------------------------------------------------------


#: Memory by depth binds: the least load and the load of what fits are searched for one after the other.
BY_DEPTH = PlacementProblem("hard", (DeviceKind("k0", 1, 1.0), DeviceKind("k1", 1, 0.5)),
                            (Node("n0", (0.0, 0.0), forward=1 / 3),
                             Node("n1", (1.0, 0.0), backward=True, forward=1 / 3),
                             Node("n2", (0.0, 0.0), 0.0, 1.0, backward=True, forward=1 / 3)),
                            (PlacementTensor(1, (2,), 0.0),))


@for_all(problems(kinds=2, most=2), st.booleans(), st.integers(1, 12), tries=40)
@example(BY_DEPTH, True, 6)
def test_a_stop_at_any_step_keeps_the_best_and_ends_the_search(problem: PlacementProblem, graph: bool, at: int) -> None:
    """Ctrl-C at the n-th step: what was found until then is returned, and few steps follow."""
    seen: list[float] = []

    def stop(step: Standing) -> None:
        seen.append(step.objective)
        if len(seen) == at:
            raise KeyboardInterrupt

    try:
        found = (place_graph if graph else place)(problem, effort=EFFORT, on_step=stop)
    except (Infeasible, KeyboardInterrupt):
        assert min(seen[:at], default=math.inf) == math.inf or graph  # a row that was found may hold too much by depth
        return
    assert len(seen) <= at + 1
    assert found.objective <= (math.inf if graph else min(seen)) * (1 + 1e-9)
    answer = best(every_graph(problem) if graph else every_row(problem))
    assert answer is not None
    check(found, float(answer[0]))


@pytest.mark.parametrize("search", [place, place_graph])
def test_no_time_at_all_still_gives_a_placement_where_one_is_easy(search: Callable[..., Placement]) -> None:
    nodes = tuple(Node(f"n{i}", (1.0 + i % 3,)) for i in range(1500))
    problem = PlacementProblem("row", (DeviceKind("gpu", 8),), nodes,
                               tuple(PlacementTensor(i, (i + 1,), 0.1) for i in range(1499)))
    found = search(problem, time_limit=0.0)
    assert len(found.stages) == 8 and found.objective <= 1.1 * found.bound


@pytest.mark.parametrize("search", [place, place_graph])
def test_sums_that_are_rounded_up_still_fit(search: Callable[..., Placement]) -> None:
    """0.1 and 0.2 are more than 0.3 in floats; the judge lets a billionth pass, and so does every refusal."""
    nodes = (Node("a", (1.0,), 0.1, colocation=0), Node("b", (1.0,), 0.2, colocation=0))
    assert search(PlacementProblem("t", (DeviceKind("gpu", 1, 0.3),), nodes, ())).objective == 2.0
