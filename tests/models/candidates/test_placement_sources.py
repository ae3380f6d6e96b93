"""`weft place` on model specs and operator graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from weft.cli.main import main
from weft.models.candidates.placement_sources import all_reduce_seconds
from weft.models.graph.operator_files import save_graph
from weft.models.hardware.devices import DEVICES
from weft.models.layers.collectives import collective_time
from weft.models.spec.families import UnoModel
from weft.models.spec.spec import SpecError, parse_spec
from weft.models.zoo.graphs import model_graph
from weft.solver.io.entries import FormatError
from weft.solver.io.problem_files import load_problem
from weft.solver.placement.dag.stage_dag import GraphPlacement
from weft.solver.placement.problem import PlacementError

SPEC = """
name: towers
model: {family: uno, features: [256, 256, 256], tower: [512, 512], joint: [64]}
cluster: {gpus: 4, memory: 16 GiB, device: v100, links: nvlink-v100}
training: {micro_batches: 8, micro_batch_size: 32, parameter_bytes: 4, gradient_bytes: 4}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "towers.json"
    save_graph(model_graph(UnoModel(family="uno", features=(256,) * 3, tower=(512, 512), joint=(64,)), 32,
                           dtype="float32"), path)
    return path


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "towers.yaml"
    path.write_text(SPEC)
    return path


def test_a_specs_towers_run_side_by_side(spec: Path) -> None:
    found = weft.place(spec, stage_graph=True, effort=1)
    assert isinstance(found, GraphPlacement)
    assert found.depths == (2, 2, 2, 1)
    assert {node.name for node in found.problem.nodes} == {"tower0", "tower1", "tower2", "joint"}
    assert found.problem.micro_batches == 8
    parameters = 3 * (256 * 512 + 512 + 512 * 512 + 512) + 1536 * 64 + 64 + 64 + 1
    assert sum(stage.resident for stage in found.stages) == parameters * (4 + 4 + 12)


def test_a_spec_and_its_operator_graph_agree(spec: Path, graph: Path) -> None:
    ours, theirs = weft.place(spec, effort=1), weft.place(graph, devices={"v100": (4, None)}, effort=1)
    assert [stage.compute for stage in ours.stages] == pytest.approx([stage.compute for stage in theirs.stages])


def test_gpus_of_unlike_memory_are_unlike_kinds() -> None:
    text = SPEC.replace("memory: 16 GiB", "memory: [16 GiB, 16 GiB, 8 GiB, 8 GiB]")
    kinds = weft.place(parse_spec(text), effort=1).problem.kinds
    assert [(kind.name, kind.count, kind.memory) for kind in kinds] == [
        ("gpu 16 GiB", 2, 15 * 2**30), ("gpu 8 GiB", 2, 7 * 2**30)]


def test_operators_may_be_cut_apart(spec: Path) -> None:
    whole, apart = (weft.place(spec, whole_layers=layers, effort=1) for layers in (True, False))
    assert len(apart.problem.nodes) > len(whole.problem.nodes) == 4


def test_devices_of_several_types_have_times_of_their_own(graph: Path) -> None:
    found = weft.place(graph, devices={"a100-40gb": (2, None), "cpu": (1, 2.0**33)}, effort=1)
    assert [kind.memory for kind in found.problem.kinds] == [38 * 2**30, 2**33]  # 39 as CUDA has them, one kept free
    assert found.problem.kinds[1].transfer_factor == 60  # NVLink's 300 GB/s over 5
    fast, slow = found.problem.nodes[0].times
    assert fast is not None and slow is not None and fast < slow


@pytest.mark.parametrize(("options", "message"), [
    ({}, "says nothing of devices"),
    ({"devices": {"tpu": (4, None)}}, "no device type 'tpu'"),
    ({"devices": {"v100": (4, None)}, "recompute": True}, "recompute chooses"),
    ({"devices": {"v100": (4, None)}, "slack": 0.1}, "slack is for a graph of stages"),
    ({"devices": {"v100": (4, None)}, "latency": True, "stage_graph": True}, "leave one of them out"),
    ({"devices": {"v100": (4, None)}, "replicate": True}, "ask for a graph of stages too"),
    ({"devices": {"v100": (4, None)}, "replicate": True, "stage_graph": True}, "give a spec of a model family"),
])
def test_what_an_operator_graph_needs_is_said(graph: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        weft.place(graph, **options)  # type: ignore[arg-type]


def test_listed_layers_are_no_operators() -> None:
    spec = parse_spec("name: row\nmodel: {layers: [{name: a, forward: 1 ms, backward: 1 ms}]}\n"
                      "cluster: {gpus: 1, memory: 1 GiB}\ntraining: {micro_batches: 1}")
    with pytest.raises(SpecError, match="placing needs operators"):
        weft.place(spec)


def test_a_file_that_is_neither_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[1]")
    with pytest.raises(FormatError, match=r"other\.json"):
        weft.place(path)


def test_the_command_shows_depth_and_what_follows(spec: Path, graph: Path, tmp_path: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", str(spec), "--stage-graph", "--effort", "1", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("towers: ") and " ms compute" in shown
    assert "depth       2 stages, lower bound 2" in shown
    assert "depth 2, then 3" in shown
    output = tmp_path / "stages.json"
    assert main(["place", str(graph), "--devices", "v100=4", "--stage-graph", "--slack", "0.05", "--operators",
                 "--effort", "1", "--quiet", "--json", "-o", str(output)]) == 0
    answer = json.loads(output.read_text())
    assert answer["depth"] == max(stage["depth"] for stage in answer["stages"])
    assert main(["place", str(graph), "--quiet"]) == 2
    assert "name some: --devices" in capsys.readouterr().err


# -- replicated stages -------------------------------------------------------------------------------------------------


def test_stages_of_a_spec_may_be_on_several_gpus() -> None:
    """Three towers and what joins them fill four of eight GPUs; replicated they fill all."""
    spec = parse_spec(SPEC.replace("gpus: 4", "gpus: 8").replace("32,", "2048,"))
    one, several = (weft.place(spec, stage_graph=True, replicate=replicate) for replicate in (False, True))
    assert not one.problem.degrees
    assert [degree.devices for degree in several.problem.degrees] == [2, 4, 8]
    assert [stage.devices for stage in several.stages] == [2, 2, 2, 2]
    assert several.status == "optimal"
    assert several.objective < one.objective
    assert spec.training is not None
    halves = spec.model_copy(update={"training": spec.training.model_copy(update={"micro_batch_size": 1024})})
    assert [stage.compute for stage in several.stages] == pytest.approx(
        [stage.compute for stage in weft.place(halves, stage_graph=True).stages])
    assert [stage.resident for stage in several.stages] == [stage.resident for stage in one.stages]
    assert [stage.activations * 2 for stage in several.stages] == [stage.activations for stage in one.stages]
    gradients = 4 * sum(node.gradient for node in several.problem.nodes) / 4
    ring = collective_time("all_reduce", int(gradients), 2, DEVICES["v100"]).seconds
    assert sum(stage.all_reduce for stage in several.stages) == pytest.approx(ring / 8)


@pytest.mark.parametrize(("change", "message"), [
    (("micro_batch_size: 32", "micro_batch_size: 3"), "micro_batch_size is 3, and replicas of a stage share each"),
    (("memory: 16 GiB", "memory: [16 GiB, 16 GiB, 8 GiB, 8 GiB]"), "cluster.memory differs among GPUs"),
])
def test_a_spec_whose_stages_cannot_be_replicated_is_refused(change: tuple[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        weft.place(parse_spec(SPEC.replace(*change)), stage_graph=True, replicate=True)


def test_machines_are_filled_evenly_by_replicas() -> None:
    spec = parse_spec(SPEC.replace("gpus: 4", "gpus: 8, gpus_per_machine: 3"))
    assert [degree.devices for degree in weft.place(spec, stage_graph=True, replicate=True).problem.degrees] == [2]


def test_replicas_over_a_link_of_unknown_devices_send_their_gradients_around_a_ring() -> None:
    spec = parse_spec(SPEC.replace("device: v100, links: nvlink-v100", "bandwidth: 10 GB/s"))
    assert all_reduce_seconds(spec, 10**9, 4) == pytest.approx(2 * 3 / 4 * 0.1)


def test_the_command_writes_the_stages_as_blocks_that_can_be_scheduled(spec: Path, tmp_path: Path,
                                                                       capsys: pytest.CaptureFixture[str]) -> None:
    blocks = tmp_path / "blocks.json"
    assert main(["place", str(spec), "--stage-graph", "--replicate", "--problem", str(blocks), "--quiet"]) == 0
    assert f"written to {blocks}" in capsys.readouterr().out
    problem = load_problem(blocks)
    placed = weft.place(spec, stage_graph=True, replicate=True)
    assert len(problem.devices) == sum(stage.devices for stage in placed.stages)
    for device in range(len(problem.devices)):
        assert any(sum(block.duration for block in problem.blocks if device in block.devices)
                   == pytest.approx(stage.load) for stage in placed.stages)
    found = weft.solve(problem, micro_batches=8, effort=1)
    assert found.makespan >= 8 * placed.objective * (1 - 1e-9)
    assert main(["place", str(spec), "--problem", str(blocks), "--quiet"]) == 2
    assert "add --stage-graph" in capsys.readouterr().err
