"""Graphs of stages for tests: forks of equal branches, problems at random, and the best of all graphs by trying."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import strategies as st

from tests.support.placements import every_placement, tensors_between
from weft.solver.placement import DeviceKind, Node, PlacementProblem, PlacementTensor, judge
from weft.solver.placement.dag.stage_blocks import StageLoad
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.placement import PlacedStage
from weft.solver.schedule import Schedule

EFFORT = 20.0


def forks(branches: int, length: int, *, devices: int, times: tuple[float, ...] = (1.0,), end: float = 1.0,
          transfer: float = 0.0, held: float = 1.0, memory: float | None = None,
          resident: float = 0.0) -> PlacementProblem:
    """Equal branches of ``length`` operators whose times repeat ``times``, and one operator that joins them."""
    nodes = [Node(f"b{b}.{i}", (times[i % len(times)],), resident, held)
             for b in range(branches) for i in range(length)] + [Node("join", (end,), resident, held)]
    tensors = [PlacementTensor(b * length + i, (b * length + i + 1 if i + 1 < length else branches * length,), transfer)
               for b in range(branches) for i in range(length)]
    return PlacementProblem("forks", (DeviceKind("gpu", devices, memory),), tuple(nodes), tuple(tensors))

CHAIN = ((1,), (2,), (3,), (4,), (5,), ())

FORK = ((4,), (4,), (4,), (4,), (5,), ())


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


def work_of(problem: PlacementProblem, stages: Sequence[PlacedStage], micro_batch: int = 1, *,
            spread: bool = False) -> list[StageLoad]:
    """The work of a placement's stages. Of an operator's time its ``forward`` share goes with the forward, of a stage's
    transfers half. ``spread``: the all-reduce of a step is in its backwards, in equal parts, or else nowhere."""
    degrees = {degree.devices: degree.times for degree in problem.degrees}
    found = []
    for stage in stages:
        times = {node: (degrees[stage.devices][node] if stage.devices > 1 else problem.nodes[node].times)[stage.kind]
                 for node in stage.nodes}
        ahead = sum(problem.nodes[node].forward * (time or 0.0) for node, time in times.items())
        trains = any(problem.nodes[node].forward < 1 for node in stage.nodes)
        memory = problem.kinds[stage.kind].memory
        found.append(StageLoad(
            ahead + stage.transfers / (2 if trains else 1),
            stage.compute - ahead + stage.transfers / 2 + (stage.all_reduce if spread else 0.0) if trains else 0.0,
            sum(problem.nodes[node].per_micro_batch for node in stage.nodes) / stage.devices, micro_batch,
            None if memory is None else max(0.0, memory - stage.resident), stage.devices, stage.resident))
    return found


def step_of(schedule: Schedule, stages: Sequence[PlacedStage], count: int) -> float:
    """The time at which all devices have ended their last block and their all-reduce, of ``count`` micro-batches."""
    after = [stage.all_reduce * count for stage in stages for _ in range(stage.devices)]
    ends = [0.0] * len(after)
    for operation in schedule.operations:
        for device in schedule.problem.blocks[operation.block].devices:
            ends[device] = max(ends[device], operation.end)
    return max(end + more for end, more in zip(ends, after, strict=True))
