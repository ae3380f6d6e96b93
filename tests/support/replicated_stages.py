"""Problems with replicated stages for tests, and all their divisions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

from tests.support.placements import tensors_between
from weft.solver.placement import Degree, DeviceKind, Node, PlacedStage, PlacementProblem, PlacementTensor


def shared(problem: PlacementProblem, *degrees: int, rate: float = 1.0, all_reduce: float = 0.0) -> PlacementProblem:
    """``problem`` with stages on so many devices too, each reaching ``rate`` of a whole micro-batch's rate."""
    return dataclasses.replace(problem, degrees=tuple(
        Degree(r, tuple(tuple(None if time is None else time / r / rate for time in node.times)
                        for node in problem.nodes), all_reduce * 2 * (r - 1) / r) for r in degrees))


def two(devices: int, **sizes: float) -> PlacementProblem:
    nodes = (Node("a", (1.0,), 2.0, 4.0, gradient=1.0), Node("b", (3.0,), 2.0, 4.0, gradient=3.0))
    return PlacementProblem("two", (DeviceKind("gpu", devices, sizes.get("memory")),), nodes,
                            (PlacementTensor(0, (1,), sizes.get("transfer", 0.0)),), micro_batches=10)


def towers(count: int, length: int, devices: int) -> PlacementProblem:
    nodes = tuple(Node(f"t{t}.{i}", (1.0 + i % 2,), gradient=1.0) for t in range(count) for i in range(length))
    last = Node("join", (4.0,), gradient=1.0)
    tensors = tuple(PlacementTensor(t * length + i, (t * length + i + 1 if i + 1 < length else count * length,), 0.1)
                    for t in range(count) for i in range(length))
    problem = PlacementProblem("towers", (DeviceKind("gpu", devices),), (*nodes, last), tensors, micro_batches=4)
    return shared(problem, 2, 4, rate=0.9, all_reduce=0.1)


@st.composite
def problems(draw: st.DrawFn, least: int = 0) -> PlacementProblem:
    """Up to five operators on up to five devices, of which a stage may have two, three or four."""
    count = draw(st.integers(1, 5))
    alike = draw(st.booleans())
    costs = [(draw(st.integers(least, 6)), draw(st.integers(0, 2)), draw(st.integers(0, 3)), draw(st.integers(0, 3)))
             for _ in range(1 if alike else count)] * (count if alike else 1)
    nodes = tuple(Node(f"n{i}", (time,), resident, held, gradient=gradient)
                  for i, (time, resident, held, gradient) in enumerate(costs))
    tensors = tensors_between(draw, count)
    memory = draw(st.one_of(st.none(), st.integers(2, 14)))
    problem = PlacementProblem("tiny", (DeviceKind("gpu", draw(st.integers(1, 5)), memory),), nodes, tensors,
                               micro_batches=draw(st.integers(1, 3)))
    degrees = sorted(draw(st.sets(st.sampled_from([2, 3, 4]), min_size=1)))
    return shared(problem, *degrees, rate=draw(st.sampled_from([1.0, 0.75])),
                  all_reduce=draw(st.sampled_from([0.0, 0.5])))


def every_row(problem: PlacementProblem) -> Iterator[tuple[list[tuple[int, list[int]]], tuple[int, ...]]]:
    """All divisions into stages in an order that breaks none, with all numbers of devices for each."""
    count, devices = len(problem.nodes), problem.devices
    degrees = [1, *(degree.devices for degree in problem.degrees)]
    for used in range(1, min(count, devices) + 1):
        for stage_of in itertools.product(range(used), repeat=count):
            if set(stage_of) != set(range(used)) or any(stage_of[a] > stage_of[b] for a, b in problem.order):
                continue
            parts = [(0, [n for n in range(count) if stage_of[n] == s]) for s in range(used)]
            for on in itertools.product(degrees, repeat=used):
                if sum(on) <= devices:
                    yield parts, on


def load(stages: tuple[PlacedStage, ...]) -> float:
    return max(stage.load for stage in stages)
