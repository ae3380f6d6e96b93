"""The best cut of one order, also into replicated stages, against all of them."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from tests.support.examples import for_all
from tests.support.placements import chain, graph
from tests.support.replicated_stages import every_row, load, problems, shared
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import DeviceKind, Node, PlacementProblem, PlacementTensor, judge
from weft.solver.placement.dag.levels.level_search import first_chain
from weft.solver.placement.groups import groups_of
from weft.solver.placement.orders.slice_order import depth_first_order, interval_transfers, slice_order


def test_a_slicing_is_the_best_of_its_order() -> None:
    groups = groups_of(chain([3, 1, 4, 1, 5], 0.5, devices=3))
    found = slice_order(groups, range(5))
    assert found is not None and found.value == 6.0  # 3 1 | 4 1 | 5, and each cut costs 0.5 on both sides


@pytest.mark.parametrize("memory", [None, 7.0, 4.0])
def test_stages_on_several_devices_of_several_kinds_are_the_best_of_their_order(memory: float | None) -> None:
    row = chain([3, 1, 4, 2], 0.5, held=[2, 1, 2, 1], flying=[1, 1, 0, 2])
    two = dataclasses.replace(
        row, kinds=(DeviceKind("fast", 2, memory), DeviceKind("slow", 3, None, 0.5)), micro_batches=3,
        nodes=tuple(dataclasses.replace(node, times=(node.times[0], 2 * (node.times[0] or 0))) for node in row.nodes))
    problem = shared(two, 2, rate=0.9)
    loads = []
    for count in (1, 2, 3, 4):
        for borders in itertools.combinations(range(1, 4), count - 1):
            parts = [range(a, b) for a, b in itertools.pairwise((0, *borders, 4))]
            for on in itertools.product([(k, r) for k in (0, 1) for r in (1, 2)], repeat=count):
                stages = judge.stages_of(problem, [(k, part) for (k, _), part in zip(on, parts, strict=True)],
                                         [r for _, r in on])
                if not judge.breaches(problem, stages):
                    loads.append(load(stages))
    found = slice_order(groups_of(problem), range(4))
    assert found is not None and found.value == pytest.approx(min(loads))


@for_all(problems(), tries=60)
def test_rows_of_replicated_stages_are_the_best_of_an_order(problem: PlacementProblem) -> None:
    in_order = []
    for parts, on in every_row(problem):
        stages = judge.stages_of(problem, parts, on)
        in_turn = [n for _, nodes in parts for n in nodes] == sorted(n for _, nodes in parts for n in nodes)
        if in_turn and not judge.breaches(problem, stages):
            in_order.append(load(stages))
    groups = groups_of(problem)
    place = groups.spread(range(groups.count))
    sliced = slice_order(groups, place)
    assert (sliced.value if sliced else float("inf")) == pytest.approx(min(in_order, default=float("inf")))
    for slicing in (sliced, first_chain(groups, Budget())):
        if slicing is not None:
            parts = [(kind, [n for g in inside for n in groups.members[g]]) for kind, inside in slicing.stages]
            stages = judge.stages_of(problem, parts, slicing.devices)
            assert not judge.breaches(problem, stages)
            assert load(stages) == pytest.approx(slicing.value)


def test_interval_transfers_are_those_of_the_nets_cut() -> None:
    chance = random.Random(2)
    nodes = [Node(f"n{i}", (1.0,)) for i in range(9)]
    tensors = [PlacementTensor(i, tuple(chance.sample(range(i + 1, 9), min(8 - i, 2))), float(i + 1)) for i in range(8)]
    groups = groups_of(graph(nodes, tensors))
    order = depth_first_order(groups, chance)
    table = interval_transfers(groups, order)
    for i in range(9):
        for j in range(i + 1, 10):
            inside = set(order[i:j])
            cut = [net.cost for net in groups.nets if inside & set(net.groups) and not set(net.groups) <= inside]
            assert table[i, j] == pytest.approx(sum(cut))
