"""Modules for nnScaler, and Tessel's files out and in."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.support.builders import both_ways, chain, pipeline, v
from tests.support.strategies import Case, cases
from weft.models.zoo.tessel import shape
from weft.runtime.export.nnscaler import nnscaler_module
from weft.runtime.export.refusal import ExportError
from weft.runtime.export.tessel import load_tessel, save_tessel, tessel_from_json, tessel_to_json
from weft.solver.baselines import baseline
from weft.solver.io.entries import FormatError
from weft.solver.problem import Block, BlockKind, Device, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.step.search import solve
from weft.solver.validate import violations

# -- nnScaler ------------------------------------------------------------------------------------------------------


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
     "no backward mirrors forward 'f0'"),
    (Problem("more", (Device("a"),), (*pipeline([0]).blocks, Block("x", BlockKind.BACKWARD, (0,), 1))),
     "backward 'x' mirrors no forward"),
])
def test_what_nnscaler_has_no_segment_for_is_refused(problem: Problem, message: str) -> None:
    with pytest.raises(ExportError, match=f"nnScaler cannot express '.*': {message}"):
        nnscaler_module(baseline("greedy", problem, 2))


# -- Tessel --------------------------------------------------------------------------------------------------------


TESSEL = {"ndevs": 2, "blocks": [
    {"mid": 0, "span": 1, "memory": 1, "btype": "forward", "gid": 0, "step": 0, "device": [0]},
    {"mid": 0, "span": 1, "memory": 1, "btype": "forward", "gid": 1, "step": 1, "device": [1]},
    {"mid": 0, "span": 3, "memory": -1, "btype": "backward", "gid": 2, "step": 2, "device": [1]},
    {"mid": 0, "span": 3, "memory": -1, "btype": "backward", "gid": 3, "step": 5, "device": [0]},
], "repetend": [0, 8]}


def test_tessels_file_of_one_micro_batch() -> None:
    assert tessel_to_json(solve(shape("chain", 2, 2), 1)) == TESSEL
    back = tessel_from_json(json.loads(json.dumps(TESSEL)), "t.json")
    assert back.problem.blocks[3].after[0].block == "b02" and back.makespan == 8 and violations(back) == []


def test_the_repetend_holds_every_block_once() -> None:
    value = tessel_to_json(solve(shape("chain", 2, 2), 6))
    first, behind = value["repetend"]
    inside = [block for block in value["blocks"] if first <= block["step"] < behind]
    assert sorted(block["gid"] for block in inside) == [0, 1, 2, 3] and 0 < first < behind
    before = {(block["gid"], block["mid"]) for block in value["blocks"] if block["step"] < first}
    in_it = {block["gid"]: block["mid"] for block in inside}
    assert before == {(gid, m) for gid, last in in_it.items() for m in range(last)}


def repeated(value: dict[str, Any], more: int) -> list[tuple[int, int, int]]:
    """``(block, micro-batch, step)`` as Tessel's ``unroll`` makes them of a file it has loaded: what starts before the
    repetend once, the repetend every period, then the rest."""
    first, behind = value["repetend"]
    inside = [block for block in value["blocks"] if first <= block["step"] < behind]
    period = max(max(block["step"] + block["span"] for block in row) - min(block["step"] for block in row)
                 for device in range(value["ndevs"])
                 if (row := [block for block in inside if device in block["device"]]))
    operations = []
    for block in value["blocks"]:
        copies = [0] if block["step"] < first else range(more + 1) if block["step"] < behind else [more]
        operations += [(block["gid"], block["mid"] + copy, block["step"] + copy * period) for copy in copies]
    return operations


@pytest.mark.parametrize("kind", ["chain", "m", "nn", "k"])
@pytest.mark.parametrize("memory", [None, 6])
def test_tessel_may_repeat_the_repetend(kind: str, memory: int | None) -> None:
    problem = shape(kind, 2, memory)
    value = tessel_to_json(solve(problem, 12, effort=0.5))
    assert value["repetend"][0] < value["repetend"][1]
    operations = tuple(Operation(block, m, step, step + problem.blocks[block].duration)
                       for block, m, step in repeated(value, 5))
    assert violations(Schedule(problem, 17, operations, 0.0)) == []


@settings(max_examples=50)
@given(cases(max_devices=3, max_micro_batches=4, links=False))
def test_a_tessel_schedule_comes_back_in_the_same_order(case: Case) -> None:
    kinds = {BlockKind.FORWARD: BlockKind.FORWARD}
    blocks = tuple(replace(block, kind=kinds.get(block.kind, BlockKind.BACKWARD), memory=block.memory[:1])
                   for block in case.problem.blocks)
    problem = replace(case.problem, blocks=blocks, devices=tuple(replace(d, memory=None) for d in case.problem.devices))
    schedule = baseline("greedy", problem, case.micro_batches)
    value = json.loads(json.dumps(tessel_to_json(schedule)))
    back = tessel_from_json(value, "t.json", problem)
    assert [[(o.block, o.micro_batch) for o in row] for row in back.device_orders] == [
        [(o.block, o.micro_batch) for o in row] for row in schedule.device_orders]
    assert back.makespan <= schedule.makespan * (1 + 1e-9)
    assert violations(tessel_from_json(value, "t.json")) == []  # on the problem that the file itself shows


@pytest.mark.parametrize(("change", "message"), [
    ({"ndevs": 0}, "ndevs is 0"),
    ({"blocks": []}, "blocks is empty"),
    ({"blocks": [{**TESSEL["blocks"][0], "gid": None}]}, r"blocks\[0\]: gid is null"),  # type: ignore[index]
    ({"blocks": [{**TESSEL["blocks"][0], "device": [2]}]}, r"device is \[2\], it must be"),  # type: ignore[index]
    ({"blocks": [{**TESSEL["blocks"][0], "btype": "w"}]}, "btype is 'w'"),  # type: ignore[index]
    ({"blocks": [TESSEL["blocks"][0]] * 2}, "block 0 of micro-batch 0 is there twice"),  # type: ignore[index]
    ({"blocks": [TESSEL["blocks"][1]]}, "block 0 of micro-batch 0 is missing"),  # type: ignore[index]
])
def test_a_tessel_file_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=f"^t.json: .*{message}"):
        tessel_from_json({**TESSEL, **change}, "t.json")


def test_tessels_file_of_another_problem_is_refused(tmp_path: Path) -> None:
    save_tessel(solve(shape("chain", 2, 2), 3), tmp_path / "t.json")
    with pytest.raises(FormatError, match=r"t.json: has 4 blocks on 2 devices, but the problem .* has 6 on 2"):
        load_tessel(tmp_path / "t.json", shape("k", 2, 6))
    with pytest.raises(FormatError, match=r"block 1 is forward on devices \[1\], but the problem's block 1, 'f1', is"):
        load_tessel(tmp_path / "t.json", pipeline([0, 0], memory=9).__class__(
            "one", (Device("a"), Device("b")), pipeline([0, 0]).blocks))


def test_what_tessel_cannot_express_is_refused() -> None:
    both = Block("x", BlockKind.FORWARD, (0, 1), 1, (1, 2))
    with pytest.raises(ExportError, match="block 'x' takes 1, 2 on its devices, it has one amount for all"):
        tessel_to_json(baseline("greedy", Problem("p", (Device("a"), Device("b")), (both,)), 1))
    other = Block("x", BlockKind.RECOMPUTE, (0,), 1)
    with pytest.raises(ExportError, match="block 'x' is of kind recompute"):
        tessel_to_json(baseline("greedy", Problem("p", (Device("a"),), (other,)), 1))
