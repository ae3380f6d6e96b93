"""The worked examples of docs/ALGORITHM.md: the code gives the numbers that stand there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import weft
from tests.support.builders import chain, loop, pipeline, v
from tests.support.cut_specs import spec_of
from tests.support.placements import chain as row_of_operators
from weft.models.cuts.space import orders_of_stages, variants_of
from weft.models.cuts.spaces import cut_spaces
from weft.solver import BASELINES, Block, BlockKind, Dependency, Device, Problem, solve
from weft.solver.bounds import makespan_bound, steady_bound
from weft.solver.bounds.heads import heads, laid_out, tails
from weft.solver.bounds.in_flight import in_flight_bound
from weft.solver.bounds.load import load_bound
from weft.solver.bounds.memory import area_of_one, chains_of_one, memory_bound
from weft.solver.bounds.span import span_bound, work_of_busiest
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.latency.search import least_latency
from weft.solver.orders.local_search import LocalSearch
from weft.solver.period import Bracket, find_period
from weft.solver.period.decide import REFUTED, decide
from weft.solver.period.improvers.list_schedule import list_periodic
from weft.solver.period.improvers.ring_search import RingSearch
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import repeat
from weft.solver.period.reductions.barriers import Contraction
from weft.solver.period.reductions.multi_batch import in_copies, repeat_copies
from weft.solver.period.refuters.v_shape_dp import VPatterns
from weft.solver.period.structure.v_shape import V
from weft.solver.pipeline import Pipeline
from weft.solver.placement import DeviceKind, Node, PlacementProblem, PlacementTensor, place, place_graph
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.groups import groups_of
from weft.solver.placement.joint.candidates import candidate_of
from weft.solver.placement.joint.cuts import cut_of
from weft.solver.placement.joint.sized import affine
from weft.solver.placement.joint.step_bound import stage_bounds
from weft.solver.placement.stage_windows import windows_of
from weft.solver.relations.graph import graph_of
from weft.solver.relations.implied_order import implied_order
from weft.solver.relations.min_dist import least_distances, least_open_period
from weft.solver.step.edges import complete
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders
from weft.solver.variants.fixed_orders import fitting, makespans

#: Deterministic seconds: more than any of these takes.
ENOUGH = 10.0


def lasting(problem: Problem, durations: Sequence[int]) -> Problem:
    return replace(problem, blocks=tuple(
        replace(block, duration=duration) for block, duration in zip(problem.blocks, durations, strict=True)))


CHAIN = lasting(pipeline(chain(3), memory=2), (1, 1, 1, 1, 2, 2))
SMALL_V = lasting(pipeline(v(2), memory=3), (2, 1, 3, 3, 2, 1, 1, 2))


def periods(problem: Problem) -> Bracket:
    instance = TickProblem.of(problem)
    return find_period(instance, one_at_a_time(instance), Budget(), deterministic=ENOUGH)


def refuted_in_whole_ticks(instance: TickProblem, period: int) -> bool:
    shape = V.of(instance)
    assert shape is not None
    return VPatterns(shape, period, period).refuted(Budget())


def makespan(problem: Problem, micro_batches: int, orders: Orders) -> float:
    return max(operation.end for operation in time_orders(problem, micro_batches, orders))


@pytest.mark.parametrize(("problem", "least", "optimum"), [
    (CHAIN, 5, 5), (SMALL_V, 9, 10), (pipeline(v(3), memory=3), 9, 10), (pipeline(v(5), memory=3), 13, 16),
    (pipeline(v(5), memory=4), 9, 12), (pipeline(loop(4), memory=2), 19, 20)])
def test_least_distances_and_optima(problem: Problem, least: int, optimum: int) -> None:
    assert least_open_period(TickProblem.of(problem), 100) == least
    found = periods(problem)
    assert found.proven and found.best.period == optimum


def test_v_shapes() -> None:
    small, three, five = (TickProblem.of(problem) for problem in (
        SMALL_V, pipeline(v(3), memory=3), pipeline(v(5), memory=3)))
    assert refuted_in_whole_ticks(small, 9)
    assert refuted_in_whole_ticks(three, 9) and refuted_in_whole_ticks(five, 15)


def test_the_whole_model() -> None:
    assert decide(TickProblem.of(SMALL_V), 9, Slice(Budget(), ENOUGH, ENOUGH)) is REFUTED


def test_schedules_of_the_small_v() -> None:
    instance = TickProblem.of(SMALL_V)
    trivial = one_at_a_time(instance)
    listed = list_periodic(instance, 9, 15)
    assert trivial.period == 15 and listed is not None and listed.period == 11
    bracket = Bracket(instance, Fraction(9), trivial)
    RingSearch(instance).improve(bracket, Slice(Budget(), ENOUGH))
    assert bracket.best.period == 10


def test_barriers() -> None:
    both = (0, 1)
    problem = Problem("embedding and head", (Device("gpu0", 2), Device("gpu1", 2)), (
        Block("E", BlockKind.FORWARD, both, 1, (0, 0)),
        Block("F0", BlockKind.FORWARD, (0,), 1, (1,), (), (Dependency("E"),)),
        Block("F1", BlockKind.FORWARD, (1,), 1, (1,), (), (Dependency("F0"),)),
        Block("H", BlockKind.FORWARD, both, 2, (0, 0), (), (Dependency("F1"),)),
        Block("B1", BlockKind.BACKWARD, (1,), 2, (-1,), (), (Dependency("H"),)),
        Block("B0", BlockKind.BACKWARD, (0,), 2, (-1,), (), (Dependency("B1"),))))
    contraction = Contraction.of(TickProblem.of(problem))
    assert contraction is not None and contraction.exact
    assert contraction.length == 3
    assert (least_open_period(contraction.inner, 100), least_open_period(TickProblem.of(problem), 100)) == (4, 6)
    assert periods(problem).best.period == 7


@pytest.mark.parametrize(("micro_batches", "rate"), [(2, Fraction(9, 2)), (3, Fraction(14, 3))])
def test_several_micro_batches_a_period(micro_batches: int, rate: Fraction) -> None:
    instance = TickProblem.of(CHAIN)
    start = repeat_copies(one_at_a_time(instance), in_copies(instance, micro_batches), micro_batches)
    found = find_period(start.instance, start, Budget(), deterministic=ENOUGH)
    assert found.proven and found.best.rate == rate
    assert steady_bound(instance) == 4


def test_fractions() -> None:
    problem = lasting(pipeline(chain(2), memory=2, lag=2), (1, 1, 2, 3))
    instance = TickProblem.of(problem)
    assert least_distances(instance, 5) is None and periods(problem).best.period == Fraction(11, 2)
    assert sum(instance.durations) + sum(arc.lag for arc in instance.arcs) == 11
    assert decide(instance.refined(4), 21, Slice(Budget(), ENOUGH, ENOUGH)) is REFUTED


@pytest.mark.parametrize(("problem", "load", "memory", "flight", "laid", "best"), [
    (CHAIN, 27, 34, 34, 36, 37), (SMALL_V, 72, 60, 48, 78, 84)])
def test_bounds_on_the_step(problem: Problem, load: int, memory: int, flight: int, laid: int, best: int) -> None:
    instance = TickProblem.of(problem)
    graph = graph_of(instance)
    order = implied_order(instance, graph, 8)
    head, tail = heads(graph, order, 8, 8), tails(graph, order, 8, 8)
    areas = [area_of_one(instance, device, chains_of_one(instance)) for device in range(len(problem.devices))]
    assert round(load_bound(problem, 8), 6) == load
    assert max(memory_bound(instance, device, area, 8, head, tail)
               for device, area in enumerate(areas) if area is not None) == memory
    assert in_flight_bound(instance, 8) == flight
    assert laid_out(graph, head, tail) == makespan_bound(instance, 8) == laid
    schedule = solve(problem, 8, effort=ENOUGH)
    assert schedule.makespan == schedule.makespan_bound == best


@pytest.mark.parametrize(("problem", "work", "repeated", "clocks", "span", "makespan"), [
    (CHAIN, 24, 32, 35, 37, 37), (SMALL_V, 72, 72, 78, 84, 84),
    (pipeline(v(4), forward=0.5, split=(0.5, 0.5), memory=8), 24, 24, 24, 24, 25.5)])
def test_spans(problem: Problem, work: float, repeated: float, clocks: float, span: float, makespan: float) -> None:
    instance = TickProblem.of(problem)
    order = implied_order(instance, graph_of(instance), 8)
    assert [instance.time(bound) for bound in (work_of_busiest(instance, 8), 8 * steady_bound(instance, order),
                                               span_bound(instance, 8, order))] == [work, repeated, clocks]
    found = solve(problem, 8, objective="span", effort=ENOUGH)
    assert (found.value, found.value_bound) == (span, span)
    least = solve(problem, 8, effort=ENOUGH)
    assert (least.makespan, least.makespan_bound) == (makespan, makespan)


def test_local_search_of_orders() -> None:
    instance = TickProblem.of(SMALL_V)
    by_stage = [[(b, m) for b in blocks for m in range(8)] for blocks in instance.blocks_on]
    for orders, start, over, found in ((repeat(one_at_a_time(instance), 8), 120, 0, [84]),
                                       (by_stage, 78, 364, [88, 85])):
        budget = Budget()
        search = LocalSearch(instance, 8, budget)
        assert search.begin(orders) and (search.kernel.makespan, search.kernel.overflow) == (start, over)
        for best in found:
            search.round(budget.slice())
            assert search.makespan == best == makespan(SMALL_V, 8, search.orders())


def test_the_implied_order_of_the_chain() -> None:
    instance = TickProblem.of(CHAIN)
    order = implied_order(instance, graph_of(instance), 8)
    assert order[CHAIN.index["b0"], CHAIN.index["f0"]] == 2


def test_completion_and_latency() -> None:
    instance, best = TickProblem.of(SMALL_V), periods(SMALL_V).best
    assert 7 * best.period + best.latency == 94 and makespan(SMALL_V, 8, repeat(best, 8)) == 85
    completed = complete(instance, best, 8, Budget(), deterministic=ENOUGH)
    assert completed is not None and makespan(SMALL_V, 8, completed.unrolled(8)) == 84
    for limit, least in ((10, 24), (11, 15)):
        found = least_latency(instance, Fraction(limit), best, Budget(), deterministic=ENOUGH)
        assert found.best.latency == found.bound == least


def test_placements() -> None:
    row = row_of_operators([3, 1, 4, 1, 5, 2], devices=3)
    groups = groups_of(row)
    assert simple_bound(groups) == pytest.approx(16 / 3)
    assert (windows_of(groups, 3, 6.5).first[4], windows_of(groups, 3, 6.5).last[4]) == (2, 1)
    assert (place(row, effort=5.0).objective, place(row, effort=5.0).status) == (7, "optimal")
    branches = PlacementProblem(
        "branches", (DeviceKind("gpu", 6, 4.0),),
        tuple(Node(name, (time,), 0.0, 1.0) for name, time in zip(
            ("in", "a1", "a2", "b1", "b2", "out"), (1.0, 2.0, 2.0, 2.0, 2.0, 1.0), strict=True)),
        (PlacementTensor(0, (1, 3)), PlacementTensor(1, (2,)), PlacementTensor(3, (4,)), PlacementTensor(2, (5,)),
         PlacementTensor(4, (5,))), micro_batches=8)
    assert place(branches, effort=5.0).objective == 4
    graph = place_graph(branches, effort=5.0)
    assert (graph.objective, graph.bound, graph.depth, graph.depth_bound) == (2, 2, 4, 4)


def test_a_step_with_sizes_of_micro_batches() -> None:
    sized = affine(row_of_operators([3, 3, 3], devices=3), 1, (1, 2), 0.0, 8)
    cut = cut_of(sized, ((0, (0,)), (0, (1,)), (0, (2,))))
    for size, step in ((1, 30), (2, 36)):
        bounds = stage_bounds(cut, ((size,),) * 3)
        assert max(by_size[size] for by_size in bounds) == pytest.approx(step)
        assert candidate_of(cut, (size,) * 3, 0.0).value == pytest.approx(step)


def test_cuts_with_order() -> None:
    layers = [{"name": f"l{i}", "forward": time * 1e-3, "backward": 2e-3 * time, "activation_memory": 1000}
              for i, time in enumerate((1, 1, 1, 3))]
    spec = spec_of(layers, "full", memory=4, micro_batches=4, shapes=["chain"], chunks=1)
    [space] = cut_spaces(spec, 4)

    def bounds() -> dict[int, int]:
        assert space.cuts is not None
        return {int(row[1]): round(bound / 1e6)
                for row, bound in zip(space.cuts.borders, space.cuts.bounds, strict=True)}

    space.open(1 << 50)
    assert bounds() == {3: 54, 2: 54, 1: 63}
    space.tighten(3, 1 << 50)
    assert bounds() == {3: 72, 2: 54, 1: 63}
    for first in (1, 2, 3):
        pipeline = Pipeline.of(space.candidate((0, first, 4)).problem)
        rows = orders_of_stages(pipeline, BASELINES["1f1b"].orders(pipeline.problem, 4))
        cuts = variants_of(space.ground, np.array([(0, 1, 4), (0, 2, 4), (0, 3, 4)], dtype=np.int16), trains=True)
        assert [int(time / 1e6) for time in makespans(cuts, rows, 4)] == [63, 54, 45]
        assert [*fitting(cuts, rows)] == [True, True, False]
    found = weft.solve(spec, effort=ENOUGH)
    assert [found.makespan, found.solver["bound_over_placements"]] == pytest.approx([54e-3, 54e-3])


def test_lanes_that_send_what_is_kept_away() -> None:
    problem = Problem("sent", (Device("gpu", 1), Device("net", lane_of="gpu")), (
        Block("F", BlockKind.FORWARD, (0,), 1, (1,)),
        Block("S", BlockKind.OTHER, (1,), 3, (-1,), (), (Dependency("F"),))))
    rows = [[(i, m) for m in range(4)] for i in (0, 1)]
    assert max(operation.end for operation in time_orders(problem, 4, rows)) == 13
    found = solve(problem, 4, effort=1)
    assert (found.makespan, found.makespan_bound) == (16, 16)
    for memory, period in ((1, 4), (2, 3)):
        instance = TickProblem.of(replace(problem, devices=(Device("gpu", memory), problem.devices[1])))
        bracket = find_period(instance, one_at_a_time(instance), Budget(deterministic=1.0))
        assert bracket.proven
        assert bracket.best.period == period
