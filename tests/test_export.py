"""Schedules for Megatron-LM, torchtitan, nnScaler and Tessel, and the front door to all formats."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import weft
from models.zoo.shapes import shape
from runtime.export.layouts import megatron_flags, megatron_layout, torchtitan_settings
from runtime.export.nnscaler import nnscaler_module
from runtime.export.refusal import ExportError
from runtime.export.tessel import load_tessel, save_tessel, tessel_from_json, tessel_to_json
from runtime.export.torch_import import read_table, schedule_of_table
from solver.baselines import baseline
from solver.files import FormatError, load_schedule, save_problem, save_schedule
from solver.problem import Block, BlockKind, Device, Problem
from solver.schedule import Operation, Schedule
from solver.search import solve
from solver.validate import violations
from tests.builders import TINY_SPEC, both_ways, chain, loop, pipeline, v
from tests.properties.strategies import Case, cases
from weft.cli import main

LAYERS = ["embedding", *(f"layer{i}" for i in range(6)), "head"]


def cut(*ends: int) -> list[list[str]]:
    return [LAYERS[a:b] for a, b in itertools.pairwise((0, *ends))]


def with_layers(schedule: Schedule, *ends: int) -> Schedule:
    return schedule.with_solver(layers_of_stage=cut(*ends))


# -- Megatron-LM and torchtitan ------------------------------------------------------------------------------------


def unrolled(layout: str) -> list[str]:
    """A layout as Megatron-LM's parser unrolls it: ``x*n`` is n times x, stages are apart by ``|``."""
    return re.sub(r"(.)\*(\d+)", lambda match: match[1] * int(match[2]), layout).split("|")


def test_megatrons_layout_holds_every_layer_in_its_stage() -> None:
    schedule = with_layers(baseline("1f1b", pipeline(chain(4)), 4), 3, 5, 6, 8)
    assert megatron_layout(schedule) == "Et*2|t*2|t|tL"
    looped = with_layers(baseline("interleaved", pipeline(loop(2)), 4), 1, 4, 7, 8)
    assert unrolled(megatron_layout(looped)) == ["E", "ttt", "ttt", "L"]
    assert megatron_flags(looped) == ('--pipeline-model-parallel-size 2\n'
                                      '--pipeline-model-parallel-layout "E|t*3|t*3|L"\n')


def test_torchtitans_settings_are_toml_with_a_name_for_every_module() -> None:
    for placement, name, expected in ((chain(2), "1f1b", "1F1B"), (loop(2), "interleaved", "Interleaved1F1B"),
                                      (v(2), "gpipe", "ZBVZeroBubble")):
        ends = (4, 8) if len(placement) == 2 else (2, 4, 6, 8)
        schedule = with_layers(baseline(name, pipeline(placement), 4), *ends)
        table = tomllib.loads(torchtitan_settings(schedule, "o.csv"))["parallelism"]
        assert table["pipeline_parallel_schedule"] == expected
        assert (table["pipeline_parallel_degree"], table["num_pp_microbatches"]) == (2, 4)
        assert table["pipeline_parallel_schedule_csv"] == "o.csv"
        assert [*itertools.chain(*table["module_fqns_per_model_part"])] == [
            "tok_embeddings", *(f"layers.{i}" for i in range(6)), "norm", "output"]
        assert len(table["module_fqns_per_model_part"]) == len(placement)


def test_torchtitans_own_names_stay() -> None:
    names = [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]
    schedule = baseline("1f1b", pipeline(chain(2)), 2).with_solver(layers_of_stage=names)
    assert tomllib.loads(torchtitan_settings(schedule, "o.csv"))["parallelism"]["module_fqns_per_model_part"] == names
    assert megatron_layout(schedule) == "Et|tL"


@pytest.mark.parametrize(("layers", "message"), [
    (None, "the schedule does not say which layers its stages hold; solve a model spec"),
    ([["a"]], "the schedule does not say which layers"),
    ([["conv1", "layer0"], ["head"]], "layer 'conv1' is not called as an embedding is"),
    ([["embed", "layer0"], ["layer1"]], "layer 'layer1' is not called as an output head is"),
    ([["embed", "norm"], ["head"]], "its head is layers 'norm', 'head', which are not all on the last stage"),
    ([["embed", "norm", "layer1"], ["head"]], "layer 'norm' is in the middle"),
])
def test_layers_they_have_no_word_for_are_refused(layers: Any, message: str) -> None:
    schedule = baseline("1f1b", pipeline(chain(2)), 2).with_solver(layers_of_stage=layers)
    for tool, export in (("Megatron-LM's layout", megatron_layout),
                         ("torchtitan", lambda schedule: torchtitan_settings(schedule, "o.csv"))):
        with pytest.raises(ExportError, match=f"{tool} cannot express 'uniform': {message}"):
            export(schedule)


def test_placements_they_have_no_rule_for_are_refused() -> None:
    folded = with_layers(baseline("gpipe", pipeline(v(2)), 2), 2, 4, 6, 8)
    with pytest.raises(ExportError, match="stage 2 of 4 is on device 'gpu1', and Megatron lays stages round and round"):
        megatron_layout(folded)
    uneven = with_layers(baseline("gpipe", pipeline([0, 1, 0]), 2), 2, 4, 8)
    with pytest.raises(ExportError, match=r"stage 0 of 3 is on device 'gpu0'.*equally many on each of 2 ranks"):
        megatron_layout(uneven)
    with pytest.raises(ExportError, match="its stages are on gpu0, gpu1, gpu0, and torchtitan has one stage a rank"):
        torchtitan_settings(uneven, "o.csv")


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
    assert tessel_to_json(solve(shape("v", 2, 2), 1)) == TESSEL
    back = tessel_from_json(json.loads(json.dumps(TESSEL)), "t.json")
    assert back.problem.blocks[3].after[0].block == "b02" and back.makespan == 8 and violations(back) == []


def test_the_repetend_holds_every_block_once() -> None:
    value = tessel_to_json(solve(shape("v", 2, 2), 6))
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


@pytest.mark.parametrize("kind", ["v", "m", "nn", "k"])
@pytest.mark.parametrize("memory", [None, 6])
def test_tessel_may_repeat_the_repetend(kind: str, memory: int | None) -> None:
    problem = shape(kind, 2, memory)
    value = tessel_to_json(solve(problem, 12, effort=0.5))
    assert value["repetend"][0] < value["repetend"][1]
    operations = tuple(Operation(block, m, step, step + problem.blocks[block].duration)
                       for block, m, step in repeated(value, 5))
    assert violations(Schedule(problem, 17, operations, 0.0)) == []


def test_exporting_needs_no_torch() -> None:
    modules = "weft.exporting, weft.fitting, runtime.export.torch_csv, runtime.export.torch_check"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; assert 'torch' not in sys.modules"], check=True)


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
    save_tessel(solve(shape("v", 2, 2), 3), tmp_path / "t.json")
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


# -- the front door ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    schedule = with_layers(baseline("1f1b", pipeline(chain(2), memory=2), 4), 4, 8)
    save_schedule(schedule, tmp_path / "schedule.json")
    return tmp_path / "schedule.json"


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_every_format_is_written(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("pytorch", "0F0,0F1,0B0"), ("pytorch-comms", "0F0,0SEND_F0"), ("megatron", "Et*3|t*3L"),
                        ("torchtitan", "[parallelism]"), ("nnscaler", "SchedulePlan"), ("tessel", '"ndevs": 2'),
                        ("perfetto", "traceEvents")):
        assert run("export", saved, "-o", tmp_path / f"out.{name}", "--format", name) == 0
        assert words in (tmp_path / f"out.{name}").read_text()
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "out.pytorch").read_text()  # torchtitan's
    for ending, name in ((".csv", "pytorch"), (".toml", "torchtitan"), (".py", "nnscaler")):
        assert run("export", saved, "-o", tmp_path / f"out{ending}") == 0
        if ending != ".toml":  # it names the CSV
            assert (tmp_path / f"out{ending}").read_text() == (tmp_path / f"out.{name}").read_text()
    capsys.readouterr()


@pytest.mark.parametrize(("arguments", "message"), [
    (["-o", "x.json"], "x.json: the ending does not say which format; name one with --format"),
    (["-o", "no/such/x.csv"], "its folder does not exist"),
    (["-o", "x.csv", "--torch", "1.13"], "the PyTorch version is '1.13', it must be 2.6 or newer"),
    (["-o", "x.csv", "--format", "torchtitan"], "x.csv: torchtitan's settings are TOML"),
])
def test_an_export_that_means_nothing_is_one_sentence(arguments: list[str], message: str, saved: Path,
                                                      tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("export", saved, *arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1


def test_a_csv_is_imported_on_units_a_problem_and_a_spec(saved: Path, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    weft.export_schedule(saved, tmp_path / "o.csv")
    assert run("import", tmp_path / "o.csv", "-o", tmp_path / "units.json") == 0
    assert "o: 4 micro-batches on 2 devices\nmakespan  15 step" in capsys.readouterr().out
    assert weft.check(tmp_path / "units.json") == []

    problem = load_schedule(saved).problem
    save_problem(problem, tmp_path / "problem.json")
    on_problem = weft.import_schedule(tmp_path / "o.csv", problem=tmp_path / "problem.json", micro_batches=4)
    assert on_problem.device_orders == load_schedule(saved).device_orders
    assert 0 < on_problem.makespan_bound <= on_problem.makespan

    (tmp_path / "spec.yaml").write_text(TINY_SPEC)
    on_spec = weft.import_schedule(tmp_path / "o.csv", problem=tmp_path / "spec.yaml")
    assert on_spec.problem.time_unit == "s" and on_spec.solver["placement"] == "1 stage a GPU, I+W"
    assert violations(on_spec) == []


def test_an_import_that_cannot_be_is_one_sentence(saved: Path, tmp_path: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    weft.export_schedule(saved, tmp_path / "o.csv")
    (tmp_path / "spec.yaml").write_text(TINY_SPEC)
    (tmp_path / "three.csv").write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
    (tmp_path / "broken.csv").write_text("0F0,0B0\n1F0,1X0\n")
    for arguments, message in (
            (["o.csv", "-n", "5"], "o.csv: has 4 micro-batches, not 5"),
            (["three.csv", "--problem", tmp_path / "spec.yaml"], "has 3 stages in rows 1, 2, 3, which is none of the"),
            (["broken.csv"], "broken.csv: row 2, cell 2: '1X0' is no action of a PyTorch schedule"),
            (["schedule.json"], "schedule.json: is weft's own (weft.schedule/1), there is nothing to import"),
            (["spec.yaml"], "spec.yaml: the ending is .yaml, what can be read is .csv"),
            (["none.csv"], "none.csv: cannot be read: No such file")):
        assert run("import", tmp_path / str(arguments[0]), *arguments[1:], "-o", tmp_path / "x.json") == 2
        printed = capsys.readouterr().err
        assert message in printed and printed.count("\n") == 1
    assert not (tmp_path / "x.json").exists()


def test_what_breaks_our_rules_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "o.csv").write_text("0F0,0F1,0B1,0B0\n")  # last in, first out
    assert run("import", tmp_path / "o.csv", "-o", tmp_path / "s.json") == 1
    assert "fault     block 'B0' of micro-batch 1 on device 'gpu0' starts at 2 step" in capsys.readouterr().out
    assert load_schedule(tmp_path / "s.json").makespan == 6


LAST_IN_FIRST_OUT = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"


def test_micro_batches_out_of_turn_are_drawn_explained_planned_and_exported(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "o.csv").write_text(LAST_IN_FIRST_OUT)
    assert run("import", tmp_path / "o.csv", "-o", tmp_path / "s.json") == 1
    assert run("draw", tmp_path / "s.json", "-o", tmp_path / "s.svg", "--critical") == 0
    assert run("draw", tmp_path / "s.json", "-o", tmp_path / "s.png", "--baseline", tmp_path / "s.json") == 0
    assert run("draw", tmp_path / "s.json", "-o", tmp_path / "trace.json") == 0
    assert run("explain", tmp_path / "s.json", "--quiet") == 0
    assert "Critical path: 6 operations" in capsys.readouterr().out
    assert run("plan", tmp_path / "s.json", "-o", tmp_path / "plan.json") == 0
    for name in ("pytorch", "pytorch-comms", "nnscaler", "tessel"):
        assert run("export", tmp_path / "s.json", "-o", tmp_path / name, "--format", name) == 0
    assert (tmp_path / "pytorch").read_text() == LAST_IN_FIRST_OUT
    back = schedule_of_table(read_table(tmp_path / "pytorch"))
    assert back.device_orders == load_schedule(tmp_path / "s.json").device_orders
    capsys.readouterr()
    assert run("explain", tmp_path / "s.json", "--what-if", "--quiet") == 1
    assert "what-if figures are of schedules that run micro-batches in turn, ask without" in capsys.readouterr().err


def test_what_no_device_can_run_is_refused_in_one_sentence(saved: Path, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    weft.export_schedule(baseline("gpipe", pipeline(chain(2)), 4), tmp_path / "o.csv")
    save_problem(pipeline(chain(2), memory=2), tmp_path / "p.json")
    assert run("import", tmp_path / "o.csv", "--problem", tmp_path / "p.json", "-o", tmp_path / "s.json") == 1
    capsys.readouterr()
    for arguments in (["draw", tmp_path / "s.json"], ["draw", saved, "--baseline", tmp_path / "s.json"],
                      ["export", tmp_path / "s.json", "-o", tmp_path / "x.csv"], ["explain", tmp_path / "s.json"],
                      ["plan", tmp_path / "s.json"]):
        assert run(*arguments) == 1
        printed = capsys.readouterr().err
        assert f"{tmp_path / 's.json'}: device 'gpu0': when block 'f0' of micro-batch 2 starts" in printed
        assert printed.endswith("(and more: `weft check` lists all)\n") and printed.count("\n") == 1


def test_a_note_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = baseline("1f1b", pipeline(chain(2)), 2)
    weft.export_schedule(schedule, tmp_path / "o.csv", format="pytorch-comms", torch="2.9")
    assert run("import", tmp_path / "o.csv", "-o", tmp_path / "s.json") == 0
    assert capsys.readouterr().out.count("note      ") == 1


def test_a_tessel_schedule_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = solve(shape("k", 2, 6), 6, effort=0.2)
    save_schedule(schedule, tmp_path / "s.json")
    save_problem(schedule.problem, tmp_path / "p.json")
    assert run("export", tmp_path / "s.json", "--format", "tessel", "-o", tmp_path / "t.json") == 0
    assert run("import", tmp_path / "t.json", "-o", tmp_path / "u.json") == 0
    assert run("import", tmp_path / "t.json", "--problem", tmp_path / "p.json", "-o", tmp_path / "w.json") == 0
    assert load_schedule(tmp_path / "u.json").makespan == load_schedule(tmp_path / "w.json").makespan
    (tmp_path / "spec.yaml").write_text(TINY_SPEC)
    assert run("import", tmp_path / "t.json", "--problem", tmp_path / "spec.yaml", "-o", tmp_path / "x.json") == 2
    assert "a Tessel schedule goes with a block problem" in capsys.readouterr().err
