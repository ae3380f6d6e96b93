"""Modules for nnScaler, and Tessel's files out and in."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support import both_ways, chain, pipeline, shape, v
from weft.runtime.export.forms import ExportError
from weft.runtime.export.tools.nnscaler import nnscaler_module
from weft.solver import Block, BlockKind, Device, Problem, baseline, solve


@dataclass(eq=False)
class IRSegment:
    """What a plan asks of nnScaler's segment: its devices, whether it is a forward, its backward."""

    device: tuple[int, ...]
    forward: bool = True
    mirror: IRSegment | None = None
    after: list[IRSegment] = field(default_factory=list)

    def isfw(self) -> bool:
        return self.forward


@dataclass
class Graph:
    segments: list[IRSegment]
    plan: Any = None

    def select(self, ntype: type, flatten: bool) -> list[IRSegment]:
        assert ntype is IRSegment and not flatten
        return self.segments


class SchedulePlan:
    """nnScaler's rules, as read in ``graph/schedule/schedplan.py``: a device runs one segment a step, and within a
    micro-batch what waits starts in a later step than what it waits for."""

    def __init__(self, graph: Graph, num_microbatches: int) -> None:
        self.graph, self.nmicros = graph, num_microbatches
        self.busy: set[tuple[int, int]] = set()
        self.start: dict[tuple[int, int], tuple[int, int]] = {}  # (segment, micro-batch) -> (step, span)
        graph.plan = self

    def add_segment(self, seg: IRSegment, micro_batch_id: int, step: int, span: int = 1) -> None:
        for device in seg.device:
            for t in range(step, step + span):
                assert (device, t) not in self.busy, "cannot execute multiple blocks at a same time step"
                self.busy.add((device, t))
        key = self.graph.segments.index(seg), micro_batch_id
        assert key not in self.start and span >= 1
        self.start[key] = step, span

    def finish(self) -> None:
        assert len(self.start) == len(self.graph.segments) * self.nmicros
        for (s, m), (step, _) in self.start.items():
            for before in self.graph.segments[s].after:
                assert self.start[self.graph.segments.index(before), m][0] < step, "The schedule plan is not valid."


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for nnScaler, which is not installed: only what the module written imports."""
    for name, content in (("nnscaler", {}), ("nnscaler.graph", {}), ("nnscaler.graph.schedule", {}),
                          ("nnscaler.graph.schedule.schedplan", {"SchedulePlan": SchedulePlan}),
                          ("nnscaler.graph.segment", {"IRSegment": IRSegment})):
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield


def staged(problem: Problem) -> tuple[Graph, list[int]]:
    """The graph nnScaler would have for ``problem``, forwards first, and the block of each of its segments."""
    blocks = [i for kind in (BlockKind.FORWARD, BlockKind.BACKWARD) for i in problem.topological_order
              if problem.blocks[i].kind == kind]
    segments = {i: IRSegment(problem.blocks[i].devices, problem.blocks[i].kind == BlockKind.FORWARD) for i in blocks}
    for producer, consumer, _ in problem.dependencies():
        segments[consumer].after.append(segments[producer])
    return Graph([segments[i] for i in blocks]), blocks


def mirrored(problem: Problem, pairs: dict[str, str]) -> tuple[Graph, list[int]]:
    graph, blocks = staged(problem)
    place = {problem.blocks[block].name: s for s, block in enumerate(blocks)}
    for forward, backward in pairs.items():
        graph.segments[place[forward]].mirror = graph.segments[place[backward]]
    return graph, blocks


@pytest.mark.parametrize(("problem", "pairs"), [
    (pipeline(v(2), lag=0.25), {f"f{s}": f"b{s}" for s in range(4)}),
    (shape("k", 2, 6), {"b00": "b04", "b01": "b05", "b02": "b03"}),
    (shape("m", 2, 6), {"b00": "b05", "b01": "b04", "b02": "b03"}),
    (both_ways(2), {f"{way}.f{s}": f"{way}.b{s}" for way in ("down", "up") for s in range(2)}),
    (shape("nn", 2, None), {}),
])
def test_nnscalers_module_makes_the_plan(problem: Problem, pairs: dict[str, str], stand_in: None) -> None:
    schedule = solve(problem, 4, effort=0.2)
    graph, blocks = mirrored(problem, pairs)
    module: dict[str, Any] = {}
    exec(compile(nnscaler_module(schedule), "plan.py", "exec"), module)
    plan = module["schedule"](graph)
    assert plan is graph.plan and plan.nmicros == 4
    for device in range(len(problem.devices)):
        order = sorted((step, blocks[s], m) for (s, m), (step, _) in plan.start.items()
                       if device in problem.blocks[blocks[s]].devices)
        assert [(block, m) for _, block, m in order] == [(o.block, o.micro_batch)
                                                         for o in schedule.device_orders[device]]
    with pytest.raises(ValueError, match="this schedule is for 4 micro-batches of"):
        module["schedule"](graph, 8)


@pytest.mark.parametrize(("problem", "message"), [
    (pipeline(chain(2), split=(1, 1)), "block 'b1' is of kind input_grad, it has forwards and full backwards only"),
    (replace(pipeline(chain(2)), blocks=tuple(
        replace(block, devices=(1,)) if block.name == "b0" else block for block in pipeline(chain(2)).blocks)),
     "its 2 backward and input_grad blocks do not mirror its 2 forward blocks, device by device"),
    (replace(pipeline(chain(2)), blocks=tuple(block for block in pipeline(chain(2)).blocks if block.name != "b0")),
     "no backward mirrors forward 'f0'"),
    (Problem("more", (Device("a"),), (*pipeline([0]).blocks, Block("x", BlockKind.BACKWARD, (0,), 1))),
     "backward block 'x' belongs to no forward block on its devices that has no other gradient"),
])
def test_what_nnscaler_has_no_segment_for_is_refused(problem: Problem, message: str) -> None:
    with pytest.raises(ExportError, match=f"nnScaler cannot express '.*': {message}"):
        nnscaler_module(baseline("greedy", problem, 2))
