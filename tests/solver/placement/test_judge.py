"""What a placement costs and holds, and every breach of a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.placements import chain, graph
from tests.support.replicated_stages import shared, two
from weft.solver.placement import DeviceKind, Node, Placement, PlacementTensor, judge, place


def loads(found: Placement) -> list[float]:
    return [stage.load for stage in found.stages]


def test_a_tensor_costs_each_stage_it_touches_once() -> None:
    problem = graph([Node("a", (1,)), Node("b", (2,)), Node("c", (3,)), Node("d", (4,))],
                    [PlacementTensor(0, (1, 2, 3), 10)], DeviceKind("gpu", 3))
    first, second, third = judge.stages_of(problem, [(0, [0]), (0, [1, 2]), (0, [3])])
    assert (first.load, second.load, third.load) == (11, 15, 14)
    assert [stage.transfers for stage in judge.stages_of(problem, [(0, [0, 1, 2, 3])])] == [0]


def test_a_cpu_pays_for_no_transfer_and_holds_what_it_likes() -> None:
    problem = graph([Node("a", (1, 5), 100), Node("b", (1, 5), 1)], [PlacementTensor(0, (1,), 3)],
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
    problem = graph(nodes, [PlacementTensor(0, (1, 2), 0), PlacementTensor(1, (3,), 0), PlacementTensor(2, (3,), 0)],
                    DeviceKind("gpu", 4))
    apart = judge.stages_of(problem, [(0, [0]), (0, [1]), (0, [2]), (0, [3])])
    assert judge.latency_of(problem, apart) == 7
    found = place(problem, latency=True)
    assert found.objective == 5 and found.latency == 7
    assert found.latency_bound == pytest.approx(7, rel=1e-6)


def test_the_judge_names_every_breach() -> None:
    problem = graph(
                    [Node("a", (1, None), 3), Node("b", (1, 1), 0, 0, "x"), Node("c", (1, 1), 0, 0, "x")],
                    [PlacementTensor(0, (1,), 0)], DeviceKind("gpu", 1, 2), DeviceKind("cpu", 1))

    def faults(*parts: tuple[int, list[int]]) -> str:
        return "; ".join(judge.breaches(problem, judge.stages_of(problem, parts)))

    assert "'a' does not run on cpu" in faults((1, [0, 1, 2]))
    assert "stage 0 holds 3 of 2 byte" in faults((0, [0]), (1, [1, 2]))
    assert "colocation class are apart" in faults((0, [0, 1]), (1, [2]))
    assert "'a' (stage 1) comes before 'b' (stage 0)" in faults((1, [1, 2]), (0, [0]))
    assert "2 stages on gpu, there are 1" in faults((0, [0]), (0, [1, 2]))
    assert "without a stage: c" in faults((0, [0, 1]))


def test_a_replicated_stage_costs_each_of_its_devices_a_part_of_the_micro_batch_and_of_the_all_reduce() -> None:
    problem = shared(two(4, transfer=0.5), 2, rate=0.75, all_reduce=1.0)
    first, second = judge.stages_of(problem, [(0, [0]), (0, [1])], [1, 2])
    assert (first.compute, first.transfers, first.all_reduce, first.load) == (1.0, 0.5, 0.0, 1.5)
    assert (second.compute, second.transfers) == (2.0, 0.25)
    assert second.all_reduce == pytest.approx(3.0 / 10)
    assert second.load == pytest.approx(2.55)
    assert (first.memory, second.memory) == (2 + 2 * 4, 2 + 4 / 2)
