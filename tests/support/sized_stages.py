"""Small placement problems at several sizes of micro-batch, and the best step of all graphs, sizes and orders."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from hypothesis import strategies as st

import weft
from tests.support.placements import every_placement, tensors_between
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.placement.groups import parts_of
from weft.solver.placement.joint.candidates import candidate_of
from weft.solver.placement.joint.cuts import SizedCut, cut_of
from weft.solver.placement.joint.sized import SizedProblem
from weft.solver.placement.problem import DeviceKind, Node, PlacementProblem


@st.composite
def sized_problems(draw: st.DrawFn, most: int = 3, sizes: tuple[int, ...] = (1, 2), batch: int = 2) -> SizedProblem:
    """Operators whose time and memory grow with the size in any way, faster or slower than in proportion."""
    count, devices = draw(st.integers(1, most)), draw(st.integers(1, 3))
    tensors = tensors_between(draw, count)
    memory = draw(st.one_of(st.none(), st.integers(4, 14)))
    resident = [draw(st.integers(0, 2)) for _ in range(count)]
    times = [draw(st.integers(1, 5)) for _ in range(count)]
    kept = [draw(st.integers(0, 3)) for _ in range(count)]
    found, before = {}, 0
    for size in sizes:
        if before:
            times = [time + draw(st.integers(0, 2 * time)) for time in times]
            kept = [amount + draw(st.integers(0, 2 * amount)) for amount in kept]
        nodes = tuple(Node(f"n{i}", (float(times[i]),), resident[i], kept[i], forward=0.5) for i in range(count))
        found[size] = PlacementProblem("tiny", (DeviceKind("gpu", devices, memory),), nodes, tuple(
            dataclasses.replace(tensor, time=tensor.time * (0.5 + size / 2)) for tensor in tensors))
        before = size
    return SizedProblem(batch, found)


def every_cut(sized: SizedProblem) -> set[SizedCut]:
    """All graphs of stages, whether or not they fit."""
    roomy = dataclasses.replace(sized.any, micro_batches=1, kinds=tuple(
        dataclasses.replace(kind, memory=None) for kind in sized.any.kinds))
    return {cut_of(sized, parts_of(row), [stage.devices for stage in row]) for row in every_placement(roomy)}


def every_choice(cut: SizedCut) -> Iterator[tuple[int, ...]]:
    """One size for each stage, in all ways."""
    yield from itertools.product(*(tuple(costs) for costs in cut.costs))


def best_step(cut: SizedCut, sizes: tuple[int, ...]) -> float:
    """The least makespan of all orders, proven; infinite where none fits."""
    if any(costs[size].room is not None and (costs[size].room or 0.0) < -1e-9
           for costs, size in zip(cut.costs, sizes, strict=True)):
        return math.inf  # what it holds always is too much
    candidate = candidate_of(cut, sizes, 0.0)
    assert candidate.problem is not None
    try:
        found = weft.solve(candidate.problem, micro_batches=candidate.micro_batches, effort=5.0, time_limit=3000)
    except Infeasible:
        return math.inf
    assert found.makespan <= found.makespan_bound * (1 + 1e-9)
    return found.makespan
