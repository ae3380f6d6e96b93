"""Pipelines that are graphs of stages: samples in flight, memory by depth, and the shallowest of the fastest graphs."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from tests.support.placements import best_load, every_placement, tensors_between
from weft.solver.cpsat.solve import Budget
from weft.solver.placement import judge
from weft.solver.placement.bounds.registry import simple_bound
from weft.solver.placement.chain.place import place
from weft.solver.placement.dag.depth_encoding import least_bottleneck_by_depth, least_depth, least_depths
from weft.solver.placement.dag.in_flight import Turn, depths, in_flight_samples, least_micro_batches
from weft.solver.placement.dag.levels.ideals import Ideals, TooWide
from weft.solver.placement.dag.levels.level_search import LevelGoal, levels
from weft.solver.placement.dag.place_graph import place_graph
from weft.solver.placement.dag.stage_blocks import StageWork, one_f_one_b, stage_problem, work_of
from weft.solver.placement.dag.stage_dag import GraphPlacement, stages_by_depth
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementProblem, Tensor
from weft.solver.placement.reductions.interchangeable import order_branches, order_twins
from weft.solver.placement.refusals import NoPlacement
from weft.solver.validate import InvalidSchedule, violations

EFFORT = 20.0


def forks(branches: int, length: int, *, devices: int, times: tuple[float, ...] = (1.0,), end: float = 1.0,
          transfer: float = 0.0, held: float = 1.0, memory: float | None = None,
          resident: float = 0.0) -> PlacementProblem:
    """Equal branches of ``length`` operators whose times repeat ``times``, and one operator that joins them."""
    nodes = [Node(f"b{b}.{i}", (times[i % len(times)],), resident, held)
             for b in range(branches) for i in range(length)] + [Node("join", (end,), resident, held)]
    tensors = [Tensor(b * length + i, (b * length + i + 1 if i + 1 < length else branches * length,), transfer)
               for b in range(branches) for i in range(length)]
    return PlacementProblem("forks", (DeviceKind("gpu", devices, memory),), tuple(nodes), tuple(tensors))


# -- samples in flight -------------------------------------------------------------------------------------------------

CHAIN = ((1,), (2,), (3,), (4,), (5,), ())
FORK = ((4,), (4,), (4,), (4,), (5,), ())


def test_stages_in_a_row_hold_as_graphpipe_says_of_candle_uno() -> None:
    assert in_flight_samples(CHAIN, [Turn(64)] * 6) == (384, 320, 256, 192, 128, 64)


def test_a_graph_of_stages_holds_as_graphpipe_says_of_candle_uno() -> None:
    assert in_flight_samples(FORK, [Turn(64)] * 6) == (192, 192, 192, 192, 128, 64)


def test_two_forwards_of_one_sample_above_a_stage_of_two_hold_as_in_graphpipes_resnet() -> None:
    """Its stage 0 runs 2F2B in micro-batches of 1 and holds 16 above stages of 2 that hold 14, 12 ... 2."""
    after = [(s + 1,) for s in range(7)] + [()]
    held = in_flight_samples(after, [Turn(1, 2)] + [Turn(2)] * 7)
    assert held[:2] == (16, 14)


def test_depth_is_the_longest_way_to_the_end() -> None:
    assert depths(((1, 2), (3,), (3,), (), (3,))) == (3, 2, 2, 1, 2)


def test_stages_in_a_circle_are_refused() -> None:
    with pytest.raises(PlacementError, match="circle"):
        depths(((1,), (0,), ()))


@pytest.mark.parametrize("turn", [(0, 1), (1, 0)])
def test_a_turn_without_samples_is_refused(turn: tuple[int, int]) -> None:
    with pytest.raises(PlacementError, match="1 or more"):
        Turn(*turn)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_micro_batches_of_stages_are_the_best_of_all_choices(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    after = [tuple(data.draw(st.sets(st.integers(x + 1, count - 1), max_size=2))) if x + 1 < count else ()
             for x in range(count)]
    sizes = (1, 2, 4)
    cost = [[data.draw(st.integers(1, 9)) / b for b in sizes] for _ in range(count)]
    room = [data.draw(st.integers(1, 14)) for _ in range(count)]

    def fits(x: int, b: int, f: int) -> bool:
        return f + b <= room[x]

    tried = []
    for chosen in itertools.product(sizes, repeat=count):
        held = in_flight_samples(after, [Turn(b) for b in chosen])
        if all(fits(x, b, f) for x, (b, f) in enumerate(zip(chosen, held, strict=True))):
            tried.append(max(cost[x][sizes.index(b)] for x, b in enumerate(chosen)))
    found = least_micro_batches(after, sizes, lambda x, b: cost[x][sizes.index(b)], fits)
    assert (found[0] if found else None) == (min(tried) if tried else None)


# -- the case study ----------------------------------------------------------------------------------------------------


def test_two_branches_of_four_layers_on_eight_devices_are_four_deep_and_not_eight() -> None:
    """GraphPipe's case study: two branches of four layers, each attention and two linear layers, on eight devices."""
    nodes = tuple(Node(f"b{b}.{layer}.{part}", (time,), 0, 1) for b in range(2) for layer in range(4)
                  for part, time in (("attention", 4.0), ("up", 3.0), ("down", 3.0)))
    tensors = tuple(Tensor(i, (i + 1,), 0.1) for i in range(len(nodes) - 1) if (i + 1) % 12)
    problem = PlacementProblem("case study", (DeviceKind("gpu", 8),), nodes, tensors)
    graph, row = place_graph(problem, effort=EFFORT), place(problem, effort=EFFORT)
    assert (graph.depth, graph.depth_bound, len(row.stages)) == (4, 4, 8)
    assert graph.objective == pytest.approx(row.objective)
    assert {stage.nodes for stage in graph.stages} == {stage.nodes for stage in row.stages}
    assert [stage.in_flight for stage in row.stages] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [stage.in_flight for stage in graph.stages] == [4, 4, 3, 3, 2, 2, 1, 1]


# -- memory by depth ---------------------------------------------------------------------------------------------------


def test_branches_fit_where_stages_in_a_row_do_not() -> None:
    problem = forks(3, 1, devices=4, memory=2.0)
    with pytest.raises(NoPlacement):
        place(problem, effort=EFFORT)
    graph = place_graph(problem, effort=EFFORT)
    assert graph.depths == (2, 2, 2, 1)
    assert graph.status == "optimal"
    assert max(stage.memory for stage in graph.stages) == 2


def test_nothing_fits_in_less_than_the_deepest_stage_needs() -> None:
    with pytest.raises(NoPlacement, match="no graph of stages fits"):
        place_graph(forks(3, 1, devices=4, memory=1.5), effort=EFFORT)


def test_micro_batches_cap_what_is_in_flight() -> None:
    problem = dataclasses.replace(forks(2, 2, devices=5), micro_batches=2)
    assert [stage.in_flight for stage in place_graph(problem, effort=EFFORT).stages] == [2, 2, 2, 2, 1]


def test_slack_buys_depth() -> None:
    """Balanced to the last bit the branches must share stages; a little more load and each has its own."""
    problem = forks(2, 3, devices=3, times=(2.0, 2.0, 3.0), end=1.0)
    exact, loose = (place_graph(problem, slack=slack, effort=EFFORT) for slack in (0.0, 0.6))
    assert loose.depth < exact.depth
    assert loose.objective > exact.objective
    assert loose.objective <= loose.limit


@pytest.mark.parametrize("slack", [-0.1, float("nan"), float("inf")])
def test_slack_out_of_range_is_refused(slack: float) -> None:
    with pytest.raises(PlacementError, match=f"slack is {slack}, it must be 0 or more and finite"):
        place_graph(forks(2, 1, devices=2), slack=slack)


def test_the_answer_says_depth_and_what_follows() -> None:
    answer = place_graph(forks(2, 1, devices=3), effort=EFFORT).to_json()
    assert answer["status"] == "optimal"
    assert (answer["depth"], answer["depth_bound"]) == (2, 2)
    assert [(stage["depth"], stage["after"]) for stage in answer["stages"]] == [(2, [2]), (2, [2]), (1, [])]


# -- against all graphs of stages --------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, kinds: int = 1) -> PlacementProblem:
    count = draw(st.integers(1, 6 if kinds == 1 else 4))
    nodes = tuple(Node(f"n{i}", tuple(draw(st.integers(0, 5)) for _ in range(kinds)), draw(st.integers(0, 2)),
                       draw(st.integers(0, 3))) for i in range(count))
    tensors = tensors_between(draw, count)
    memory = draw(st.one_of(st.none(), st.integers(3, 16)))
    most = 3 if kinds == 1 else 2
    devices = tuple(DeviceKind(f"k{k}", draw(st.integers(1, most)), memory,
                               draw(st.sampled_from([1.0, 0.0])) if k else 1.0) for k in range(kinds))
    return PlacementProblem("tiny", devices, nodes, tensors,
                            micro_batches=draw(st.one_of(st.none(), st.integers(1, 3))))


def best_graph(problem: PlacementProblem, slack: float = 0.0) -> tuple[float, int] | None:
    """The least largest load of all graphs of stages and the least depth within ``slack`` of it, by trying all."""
    roomy = dataclasses.replace(problem, micro_batches=1)  # fits at least wherever a graph of stages does
    found = []
    for row in every_placement(roomy):
        stages, _, deep = stages_by_depth(problem, [(stage.kind, stage.nodes) for stage in row])
        if not judge.breaches(problem, stages):
            found.append((max(stage.load for stage in stages), max(deep)))
    if not found:
        return None
    least = min(load for load, _ in found)
    return least, min(depth for load, depth in found if load <= least * (1 + slack) + 1e-9)


@settings(max_examples=80, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.3]))
def test_levels_find_the_least_load_and_then_the_least_depth(problem: PlacementProblem, slack: float) -> None:
    best = best_graph(problem, slack)
    groups = groups_of(problem)
    found = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), slack=slack))
    if best is None:
        assert found.stages is None
        return
    assert found.stages is not None
    assert found.bound == pytest.approx(best[0], rel=1e-6)
    assert found.depth == best[1]
    stages, _, deep = stages_by_depth(problem, [(kind, [n for g in inside for n in groups.members[g]])
                                                for kind, inside in found.stages.stages])
    assert not judge.breaches(problem, stages)
    assert max(deep) <= found.depth
    assert max(stage.load for stage in stages) <= best[0] * (1 + slack) * (1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_levels_in_a_row_are_the_best_stages_in_a_row(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    found = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), in_a_row=True))
    best = best_load(problem)
    assert (found.stages.value if found.stages else float("inf")) == pytest.approx(best, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(problems(kinds=2), st.sampled_from([0.0, 0.3]))
def test_the_encoding_finds_the_least_load_and_then_the_least_depth(problem: PlacementProblem, slack: float) -> None:
    """On devices of two kinds, which the levels are not for."""
    best = best_graph(problem, slack)
    if best is None:
        with pytest.raises(NoPlacement):
            place_graph(problem, slack=slack, effort=EFFORT)
        return
    found = place_graph(problem, slack=slack, effort=EFFORT)
    assert found.status == "optimal" or (found.objective > found.bound and slack)
    assert found.bound == pytest.approx(best[0], rel=1e-6)
    assert found.limit == pytest.approx(best[0] * (1 + slack), rel=1e-6)
    assert found.depth == found.depth_bound == best[1]


@settings(max_examples=25, deadline=None)
@given(problems())
def test_the_encodings_parts_agree_with_all_graphs_of_stages(problem: PlacementProblem) -> None:
    best = best_graph(problem)
    groups = order_branches(order_twins(groups_of(problem)))
    found = least_bottleneck_by_depth(groups, Budget(deterministic=EFFORT), None, 0.0)
    assert found.infeasible == (best is None)
    assume(best is not None and best[0] > 0)
    assert best is not None and found.stages is not None
    assert found.stages.value == pytest.approx(best[0], rel=1e-6)
    shallow = least_depth(groups, Budget(deterministic=EFFORT), best[0])
    assert shallow.bound == best[1]
    assert max(least_depths(groups, best[0])) <= best[1]


@st.composite
def trained(draw: st.DrawFn) -> PlacementProblem:
    """Forward operators and their backward twins, of which some pass tensors to each other that no forward mirrors."""
    count = draw(st.integers(2, 5))
    nodes = [Node(f"{way}{i}", (draw(st.integers(0, 3)),), draw(st.integers(0, 1)), draw(st.integers(0, 1)), i,
                  way == "b") for way in "fb" for i in range(count)]
    tensors = [Tensor(i, (j,), draw(st.sampled_from([0.0, 1.0]))) for i in range(count) for j in range(i + 1, count)
               if draw(st.booleans())]
    tensors += [Tensor(count + j, (count + i,), draw(st.sampled_from([1.0, 6.0]))) for i in range(count)
                for j in range(i + 1, count) if draw(st.integers(0, 3)) == 0]
    devices = DeviceKind("gpu", draw(st.integers(1, 3)), draw(st.none() | st.integers(4, 12)))
    return PlacementProblem("trained", (devices,), tuple(nodes), tuple(tensors), draw(st.integers(1, 3)))


@settings(max_examples=60, deadline=None)
@given(trained())
def test_tensors_beside_the_forward_graph_count_where_they_cross(problem: PlacementProblem) -> None:
    """Two operators of which neither comes before the other may be cheap together and too much for a device apart."""
    best = best_graph(problem)
    if best is None:
        with pytest.raises(NoPlacement):
            place_graph(problem, effort=EFFORT)
        return
    found = place_graph(problem, effort=EFFORT)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(best[0], rel=1e-6)
    assert found.depth == best[1]


def test_a_gradient_between_branches_keeps_them_together() -> None:
    """x, then a and b, then y, forwards; and 5 to pass from b's backward to a's: apart, each of them is above 5."""
    nodes = [Node(way + name, (1.0,), colocation=name, backward=way == "b") for way in "fb" for name in "xaby"]
    tensors = [Tensor(0, (1,)), Tensor(0, (2,)), Tensor(1, (3,)), Tensor(2, (3,)), Tensor(6, (5,), 5.0)]
    problem = PlacementProblem("beside", (DeviceKind("gpu", 3),), tuple(nodes), tuple(tensors), 4)
    found = place_graph(problem, effort=EFFORT)
    assert (found.objective, found.depth) == (4.0, 3)
    assert found.bound == pytest.approx(4.0)
    with pytest.raises(TooWide, match="neither comes before the other"):
        levels(groups_of(problem), Budget(), LevelGoal(least=0.0))
    row = levels(groups_of(problem), Budget(), LevelGoal(least=0.0, in_a_row=True))  # one piece a level
    assert row.stages is not None and row.stages.value == 4.0
    halves = Degree(2, tuple((0.5,) for _ in nodes))
    shared = place_graph(dataclasses.replace(problem, degrees=(halves,)), effort=EFFORT)  # without proof: in a row
    assert shared.solver["by"] == "rows" and shared.bound <= shared.objective <= 4.0


# -- large and equal branches ------------------------------------------------------------------------------------------


def test_equal_branches_are_told_apart_by_place_and_not_by_name() -> None:
    """Sixteen equal operators on eight devices: hundreds of ideals, of which a few dozen differ in more than names.
    """
    problem = forks(4, 4, devices=8, end=0.25, transfer=0.01)
    groups = groups_of(problem)
    found = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), max_cuts=20_000))
    assert found.stages is not None
    assert found.bound == pytest.approx(found.stages.value)
    assert found.depth == 3
    graph = place_graph(problem, effort=EFFORT)
    assert isinstance(graph, GraphPlacement)
    assert (graph.depth, graph.solver["by"]) == (3, "levels")
    assert len({node for stage in graph.stages for node in stage.nodes}) == 17


@pytest.mark.parametrize("in_a_row", [False, True])
def test_cuts_made_once_serve_the_same_graph_at_other_costs_and_no_other_graph(in_a_row: bool) -> None:
    first, second = (groups_of(forks(3, 3, devices=4, times=times, end=2.0)) for times in ((1.0, 3.0), (2.0, 1.0)))
    shared = Ideals(first, Budget(), limit=math.inf, devices=4, in_a_row=in_a_row, twins=True)
    for groups in (first, second):
        alone = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), in_a_row=in_a_row))
        again = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), in_a_row=in_a_row), ideals=shared)
        assert again.stages is not None and alone.stages is not None
        assert (again.bound, again.depth, again.stages.value) == (alone.bound, alone.depth, alone.stages.value)
        assert again.cuts == shared.count
    longer = groups_of(forks(3, 4, devices=4))
    before = shared.count
    goal = LevelGoal(least=simple_bound(longer), in_a_row=in_a_row)
    assert levels(longer, Budget(), goal, ideals=shared).stages is not None
    assert shared.count == before


def test_wide_graphs_are_too_wide() -> None:
    nodes = tuple(Node(f"n{i}", (1.0 + i / 100,)) for i in range(24))
    groups = groups_of(PlacementProblem("wide", (DeviceKind("gpu", 3),), nodes, ()))
    with pytest.raises(TooWide):
        levels(groups, Budget(), LevelGoal(least=simple_bound(groups), max_cuts=20_000))


# -- schedules of graphs of stages -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_f_one_b_on_any_graph_of_stages_holds_what_the_rule_says(data: st.DataObject) -> None:
    """The judge checks every schedule against memory for just the samples that the rule gives a stage."""
    count = data.draw(st.integers(1, 6))
    after = [tuple(sorted(data.draw(st.sets(st.integers(x + 1, count - 1), max_size=2)))) if x + 1 < count else ()
             for x in range(count)]
    sizes = [data.draw(st.sampled_from([1, 2, 4])) for _ in range(count)]
    held = in_flight_samples(after, [Turn(b) for b in sizes])
    works = [StageWork(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9)), b, b, f)
             for b, f in zip(sizes, held, strict=True)]
    n = data.draw(st.integers(1, 6))
    schedule = one_f_one_b(stage_problem("any", works, after), works, after, n)
    assert not violations(schedule)
    unit = max(sizes)
    assert schedule.makespan >= max((w.forward + w.backward) * unit // w.micro_batch * n for w in works)


def test_equal_stages_take_a_step_shorter_by_the_depth() -> None:
    """n micro-batches on S equal stages, d deep: (n + d - 1) forwards and backwards one after another."""
    for after, depth in ((CHAIN, 6), (FORK, 3)):
        works = [StageWork(1.0, 2.0)] * 6
        schedule = one_f_one_b(stage_problem("equal", works, after), works, after, 10)
        assert schedule.makespan == (10 + depth - 1) * 3


def test_one_f_one_b_with_less_memory_than_the_rule_says_is_refused() -> None:
    works = [StageWork(1.0, 2.0, 1.0, 1, memory) for memory in (2.0, 2.0, 3.0, 3.0, 2.0, 1.0)]
    with pytest.raises(InvalidSchedule):
        one_f_one_b(stage_problem("tight", works, FORK), works, FORK, 10)


def test_micro_batches_that_do_not_divide_the_largest_are_refused() -> None:
    with pytest.raises(PlacementError, match="stage 1 runs micro-batches of 2"):
        stage_problem("odd", [StageWork(1, 1, 0, 3), StageWork(1, 1, 0, 2)], [(1,), ()])


def test_a_placed_graph_of_stages_is_scheduled_at_its_load_and_within_its_memory() -> None:
    problem = forks(3, 2, devices=7, transfer=0.25, held=1.0, resident=2.0, memory=5.0)
    graph = place_graph(problem, effort=EFFORT)
    works = work_of(problem, graph.stages)
    schedule = one_f_one_b(stage_problem("placed", works, graph.after), works, graph.after, 12)
    assert schedule.makespan >= 12 * graph.objective
    assert max(stage.memory for stage in graph.stages) == 5.0


def test_wefts_search_proves_1f1b_on_equal_stages_in_a_graph() -> None:
    works = [StageWork(1, 2, 1, 1, held) for held in (3, 3, 3, 3, 2, 1)]
    problem = stage_problem("fork", works, FORK)
    found = weft.solve(problem, micro_batches=6, effort=2)
    assert found.makespan == found.makespan_bound == one_f_one_b(problem, works, FORK, 6).makespan == 24
