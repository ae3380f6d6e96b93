"""Placement of operator graphs: what a placement costs, what is refused, and small cases one can check by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.placements import chain, ideal_program
from weft.solver.cpsat.solve import Budget
from weft.solver.placement import judge
from weft.solver.placement.bracket import Step
from weft.solver.placement.chain.place import place, place_within
from weft.solver.placement.groups import Net, groups_of
from weft.solver.placement.orders.depth_first import depth_first_order
from weft.solver.placement.orders.intervals import interval_transfers
from weft.solver.placement.orders.slice_order import slice_order
from weft.solver.placement.params import PARAMS
from weft.solver.placement.placement import Placement
from weft.solver.placement.problem import DeviceKind, Node, PlacementError, PlacementProblem, Tensor
from weft.solver.placement.reductions.coarsen import coarsen
from weft.solver.placement.reductions.fold import fold
from weft.solver.placement.reductions.interchangeable import order_twins
from weft.solver.placement.refusals import NoPlacement

GPU = DeviceKind("gpu", 2)


def graph(nodes: list[Node], tensors: list[Tensor], *kinds: DeviceKind) -> PlacementProblem:
    return PlacementProblem("graph", kinds or (GPU,), tuple(nodes), tuple(tensors))


def loads(found: Placement) -> list[float]:
    return [stage.load for stage in found.stages]


# -- what a placement costs ----------------------------------------------------------------------------------------


def test_a_tensor_costs_each_stage_it_touches_once() -> None:
    problem = graph([Node("a", (1,)), Node("b", (2,)), Node("c", (3,)), Node("d", (4,))],
                    [Tensor(0, (1, 2, 3), 10)], DeviceKind("gpu", 3))
    first, second, third = judge.stages_of(problem, [(0, [0]), (0, [1, 2]), (0, [3])])
    assert (first.load, second.load, third.load) == (11, 15, 14)
    assert [stage.transfers for stage in judge.stages_of(problem, [(0, [0, 1, 2, 3])])] == [0]


def test_a_cpu_pays_for_no_transfer_and_holds_what_it_likes() -> None:
    problem = graph([Node("a", (1, 5), 100), Node("b", (1, 5), 1)], [Tensor(0, (1,), 3)],
                    DeviceKind("gpu", 1, 10), DeviceKind("cpu", 1, None, 0.0))
    found = place(problem)
    assert [(stage.kind, stage.load) for stage in found.stages] == [(1, 5), (0, 4)]


def test_a_stage_holds_as_many_micro_batches_as_stages_follow_and_itself() -> None:
    problem = chain([1, 1, 1], devices=3, memory=100, held=[5, 5, 5], flying=[2, 2, 2])
    parts = [(0, [0]), (0, [1]), (0, [2])]
    assert [stage.memory for stage in judge.stages_of(problem, parts)] == [11, 9, 7]
    capped = replace(problem, micro_batches=2)
    assert [stage.memory for stage in judge.stages_of(capped, parts)] == [9, 9, 7]


def test_memory_in_flight_moves_a_cut() -> None:
    free = place(chain([1, 1, 1, 1], flying=[1, 1, 1, 1]))
    tight = place(chain([1, 1, 1, 1], memory=3, flying=[1, 1, 1, 1]))
    assert loads(free) == [2, 2]
    assert [len(stage.nodes) for stage in tight.stages] == [1, 3]
    assert tight.status == "optimal"


def test_latency_counts_branches_side_by_side() -> None:
    nodes = [Node(name, (time,)) for name, time in (("in", 1), ("left", 5), ("right", 5), ("out", 1))]
    problem = graph(nodes, [Tensor(0, (1, 2), 0), Tensor(1, (3,), 0), Tensor(2, (3,), 0)], DeviceKind("gpu", 4))
    apart = judge.stages_of(problem, [(0, [0]), (0, [1]), (0, [2]), (0, [3])])
    assert judge.latency_of(problem, apart) == 7
    found = place(problem, latency=True)
    assert found.objective == 5 and found.latency == 7
    assert found.latency_bound == pytest.approx(7, rel=1e-6)


def test_the_judge_names_every_breach() -> None:
    problem = graph(
                    [Node("a", (1, None), 3), Node("b", (1, 1), 0, 0, "x"), Node("c", (1, 1), 0, 0, "x")],
                    [Tensor(0, (1,), 0)], DeviceKind("gpu", 1, 2), DeviceKind("cpu", 1))

    def faults(*parts: tuple[int, list[int]]) -> str:
        return "; ".join(judge.breaches(problem, judge.stages_of(problem, parts)))

    assert "'a' does not run on cpu" in faults((1, [0, 1, 2]))
    assert "stage 0 holds 3 of 2 byte" in faults((0, [0]), (1, [1, 2]))
    assert "colocation class are apart" in faults((0, [0, 1]), (1, [2]))
    assert "'a' (stage 1) comes before 'b' (stage 0)" in faults((1, [1, 2]), (0, [0]))
    assert "2 stages on gpu, there are 1" in faults((0, [0]), (0, [1, 2]))
    assert "without a stage: c" in faults((0, [0, 1]))


# -- order ---------------------------------------------------------------------------------------------------------


def test_backward_operators_ride_on_their_forward_twins() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("b", (1,), colocation=1),
             Node("b'", (2,), colocation=1, backward=True), Node("a'", (2,), colocation=0, backward=True)]
    problem = graph(nodes, [Tensor(0, (1,), 1), Tensor(1, (2,), 0), Tensor(2, (3,), 1)])
    assert problem.order == ((0, 1),)
    groups = groups_of(problem)
    assert groups.members == ((0, 3), (1, 2))
    assert groups.nets == (Net((0, 1), 2.0),)  # the activation and its gradient are one net


def test_a_backward_operator_without_a_twin_is_placed_as_if_mirrored() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("loss", (1,), backward=True), Node("a'", (1,), colocation=0,
                                                                                    backward=True)]
    problem = graph(nodes, [Tensor(0, (1,), 0), Tensor(1, (2,), 0)])
    assert problem.order == ((2, 1),)


def test_classes_that_wait_for_each_other_are_one_group() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("b", (1,)), Node("c", (1,), colocation=0)]
    problem = graph(nodes, [Tensor(0, (1,), 0), Tensor(1, (2,), 0)])
    assert groups_of(problem).members == ((0, 1, 2),)


# -- reductions ----------------------------------------------------------------------------------------------------


def test_weights_and_dear_outputs_are_folded_into_their_readers() -> None:
    nodes = [Node("weight", (0,)), Node("a", (2,)), Node("wide", (1,)), Node("b", (2,))]
    tensors = [Tensor(0, (1,), 4), Tensor(1, (2,), 1), Tensor(2, (3,), 9)]
    assert fold(groups_of(graph(nodes, tensors))).members == ((0, 1), (2, 3))


def test_a_weight_that_memory_may_push_elsewhere_is_not_folded() -> None:
    nodes = [Node("weight", (0,), 6), Node("a", (2,), 6)]
    problem = graph(nodes, [Tensor(0, (1,), 1)], DeviceKind("gpu", 2, 10))
    assert fold(groups_of(problem)).count == 2
    assert place(problem).objective == 3


def test_interchangeable_branches_are_put_in_order() -> None:
    nodes = [Node("in", (1,)), Node("x", (3,)), Node("y", (3,)), Node("z", (4,)), Node("out", (1,))]
    tensors = [Tensor(0, (1, 2, 3), 1), *(Tensor(i, (4,), 1) for i in (1, 2, 3))]
    groups = order_twins(groups_of(graph(nodes, tensors)))
    assert (1, 2) in groups.order and not {(1, 3), (3, 1)} & set(groups.order)


def test_coarsening_stays_below_its_cap_and_has_no_cycle() -> None:
    chance = random.Random(1)
    nodes = [Node(f"n{i}", (1.0,)) for i in range(300)]
    tensors = [Tensor(i, tuple({min(299, i + chance.randint(1, 4)) for _ in range(2)}), chance.random())
               for i in range(299)]
    coarse = coarsen(groups_of(graph(nodes, tensors)), 60, 2)
    assert 60 <= coarse.count < 300
    assert coarse.times.max() <= 300 / (2 * 20)
    assert all(a < b for a, b in coarse.order)


# -- slicing -------------------------------------------------------------------------------------------------------


def test_interval_transfers_are_those_of_the_nets_cut() -> None:
    chance = random.Random(2)
    nodes = [Node(f"n{i}", (1.0,)) for i in range(9)]
    tensors = [Tensor(i, tuple(chance.sample(range(i + 1, 9), min(8 - i, 2))), float(i + 1)) for i in range(8)]
    groups = groups_of(graph(nodes, tensors))
    order = depth_first_order(groups, chance)
    table = interval_transfers(groups, order)
    for i in range(9):
        for j in range(i + 1, 10):
            inside = set(order[i:j])
            cut = [net.cost for net in groups.nets if inside & set(net.groups) and not set(net.groups) <= inside]
            assert table[i, j] == pytest.approx(sum(cut))


def test_a_slicing_is_the_best_of_its_order() -> None:
    groups = groups_of(chain([3, 1, 4, 1, 5], 0.5, devices=3))
    found = slice_order(groups, range(5))
    assert found is not None and found.value == 6.0  # 3 1 | 4 1 | 5, and each cut costs 0.5 on both sides


@pytest.mark.parametrize("seed", range(6))
def test_the_dynamic_program_over_ideals_agrees(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [Node(f"n{i}", (chance.choice((0.0, 1.0, chance.uniform(1, 5))),)) for i in range(20)]
    tensors = [Tensor(i, tuple(sorted({min(19, i + chance.randint(1, 3)), min(19, i + chance.randint(1, 4))})),
                      chance.uniform(0, 1.5)) for i in range(19)]
    problem = graph(nodes, tensors, DeviceKind("gpu", 3 + seed % 3))
    found = place(problem)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(ideal_program(problem))


# -- the search ----------------------------------------------------------------------------------------------------


def test_a_load_may_exceed_all_work_by_its_transfers() -> None:
    # Had the loads' domain ended at all work there is, this would have been called impossible.
    problem = chain([1, 1], 50, memory=1, held=[1, 1])
    assert place(problem).objective == 51


def test_the_same_seed_gives_the_same_answer_and_steps_are_told() -> None:
    steps: list[Step] = []
    problem = chain([chance / 7 for chance in range(1, 40)], 0.1, devices=4)
    first = place(problem, effort=2, seed=3, on_step=steps.append)
    assert first.to_json() == place(problem, effort=2, seed=3).to_json()
    assert first.status == "optimal"
    assert steps[-1].objective == pytest.approx(first.objective)
    assert first.to_json()["format"] == "weft.placement/1"


def row(count: int) -> PlacementProblem:
    nodes = [Node(f"n{i}", (1.0 + i % 3,)) for i in range(count)]
    return graph(nodes, [Tensor(i, (i + 1,), 0.1) for i in range(count - 1)], DeviceKind("gpu", 4))


def test_a_good_cutoff_makes_a_large_graph_small_enough_for_proof() -> None:
    problem = row(2000)
    found = place(problem, time_limit=60)
    best = slice_order(groups_of(problem), range(2000))  # a row has one order only
    assert best is not None and found.objective == pytest.approx(best.value)
    assert found.status == "optimal" and found.solver["coarsening"] is None


def test_what_is_too_large_for_proof_is_coarsened_and_said_to_be() -> None:
    found = place_within(row(2000), Budget(seconds=60), params=replace(PARAMS, whole_variables=-1))
    assert found.solver["coarsening"].startswith("heuristic")
    assert found.bound == pytest.approx(3999 / 4)
    assert found.gap < 0.01


def test_an_interrupt_keeps_the_best_so_far() -> None:
    def stop(step: Step) -> None:
        if step.doing == "exact search":
            raise KeyboardInterrupt

    problem = chain([1 + chance / 7 for chance in range(1, 40)], 0.5, devices=4)
    found = place(problem, on_step=stop)
    assert not judge.breaches(problem, found.stages)
    assert found.bound < found.objective and found.status == "feasible"


def test_where_only_the_exact_search_finds_what_fits_it_is_used_whatever_the_size() -> None:
    found = place_within(chain([3, 1, 4, 1, 5], devices=3), Budget(seconds=60),
                         params=replace(PARAMS, whole_variables=-1), without={"random slicings", "coarse search"})
    assert found.objective == 5
    assert set(found.solver["techniques"]) == {"threshold search", "refinement"}


@pytest.mark.parametrize(("held", "memory", "sentence"), [
    ([8, 20, 3], 12.0, "operator 'n1' holds 20 byte, a device of kind gpu has 12 byte: 8 byte are missing"),
    ([8, 9, 9], 12.0, "the operators hold 26 byte together, all devices have 24 byte: 2 byte are missing; the largest "
                      "is operator 'n1' with 9 byte"),
    ([6, 6, 6], 10.0, "no division of the operators into stages fits: 2 byte are missing on a device of kind gpu "
                      "however they are divided; the largest operator in the fullest stage is operator 'n"),
])
def test_what_does_not_fit_is_named_with_what_is_missing(held: list[float], memory: float, sentence: str) -> None:
    with pytest.raises(NoPlacement) as refused:
        place(chain([1, 1, 1], memory=memory, held=held))
    assert str(refused.value).startswith(sentence)


# -- problems that mean nothing ------------------------------------------------------------------------------------

A, B = Node("a", (1,)), Node("b", (1,))


@pytest.mark.parametrize(("nodes", "tensors", "kinds", "sentence"), [
    ([], [], (GPU,), "the graph has no operators, it needs at least one"),
    ([A], [], (DeviceKind("gpu", 0),), "there are no devices, at least one is needed"),
    ([A, A], [], (GPU,), "operators: the name 'a' is used twice"),
    ([Node("a", (1, 2))], [], (GPU,), "operator 'a': 2 times for 1 kinds of device, it needs one for each"),
    ([A, B], [Tensor(0, (2,), 1)], (GPU,), "tensor 0: there is no operator 2, they are numbered 0 to 1"),
    ([A, B], [Tensor(0, (), 1)], (GPU,), "tensor 0, produced by 'a': it has no consumer, leave it out"),
    ([A, B], [Tensor(0, (1,), -1)], (GPU,), "tensor 0, produced by 'a': transfer time is -1, it must be 0 or more"),
    ([A, B], [Tensor(0, (1,), 0), Tensor(1, (0,), 0)], (GPU,),
     "the operators a -> b -> a form a cycle; an operator graph has none, remove one of these edges"),
    ([Node("a", (1,), backward=True), B], [Tensor(0, (1,), 0)], (GPU,),
     "tensor 0: the backward operator 'a' feeds the forward operator 'b'; mark the latter as backward too"),
    ([Node("a", (1, None))], [], (DeviceKind("gpu", 0), DeviceKind("cpu", 1)),
     "operator 'a' runs on gpu only, and there is no such device; add one, or a time on another kind"),
    ([Node("a", (1, None), colocation=1), Node("b", (None, 1), colocation=1)], [], (GPU, DeviceKind("cpu", 1)),
     "operators 'a', 'b' must share a device, but no kind of device there is runs all of them; take them apart, or "
     "give times on one kind"),
])
def test_a_problem_that_means_nothing_is_refused(nodes: list[Node], tensors: list[Tensor],
                                                 kinds: tuple[DeviceKind, ...], sentence: str) -> None:
    with pytest.raises(PlacementError) as refused:
        graph(nodes, tensors, *kinds)
    assert str(refused.value) == sentence


def test_negative_and_missing_costs_are_refused() -> None:
    for time, memory, sentence in ((-1.0, 0.0, "time is -1.0, it must be 0 or more"),
                                   (None, 0.0, "no kind of device supports it, give it a time on at least one"),
                                   (float("nan"), 0.0, "time is nan, it must be a finite number of at most 1e+100"),
                                   (1.0, -2.0, "memory is -2.0, it must be 0 or more")):
        with pytest.raises(PlacementError) as refused:
            Node("a", (time,), memory)
        assert str(refused.value) == f"operator 'a': {sentence}"
