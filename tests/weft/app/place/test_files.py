"""What `weft place` writes: formats, and block problems whose schedules still show what stages hold all the time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from tests.support.commands import shows
from weft.app.place.place import blocks_of
from weft.cli.main import main
from weft.solver import Device, ProblemError, load_schedule
from weft.solver.io.problem_files import load_problem, problem_from_json, problem_to_json
from weft.solver.placement import DeviceKind, Node, PlacementProblem, PlacementTensor, place_graph

_SPEC = """
name: small
model: {family: gpt, layers: 4, hidden: 256, heads: 4, vocabulary: 4096, sequence: 128}
costs: roofline
cluster: {gpus: 2, memory: 2 GiB, bandwidth: 100 GB/s, device: v100}
training: {micro_batches: 4, micro_batch_size: 2}
"""


@pytest.mark.parametrize(("options", "name"), [
    ([], "weft.placement/1"), (["--stage-graph"], "weft.placement/1"), (["--memory"], "weft.memory_plans/1")])
def test_every_answer_has_a_format_with_a_schema(options: list[str], name: str, tmp_path: Path) -> None:
    spec, answer = tmp_path / "spec.yaml", tmp_path / "answer.json"
    spec.write_text(_SPEC)
    assert main(["place", str(spec), *options, "-o", str(answer)]) == 0
    found = json.loads(answer.read_text())
    assert found["format"] == name
    schema = json.loads(shows("schema", name.removeprefix("weft.").removesuffix("/1")))
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(found, schema)
    for damaged in ({**found, "format": "weft.other/1"}, {**found, "further": 1},
                    {key: value for key, value in found.items() if key != "name"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(damaged, schema)


@pytest.mark.parametrize("option", ["--stage-graph", "--memory"])
def test_weights_stay_in_view_from_place_to_solve(option: str, tmp_path: Path) -> None:
    """What parameters, gradients and optimizer take is off each GPU's memory, and shown beside what blocks hold."""
    spec, blocks, answer, schedule = (tmp_path / name for name in ("s.yaml", "p.json", "a.json", "r.json"))
    spec.write_text(_SPEC)
    assert main(["place", str(spec), option, "--problem", str(blocks), "-o", str(answer)]) == 0
    stages = (json.loads(answer.read_text()) if option == "--stage-graph" else
              json.loads(answer.read_text())["plans"][0])["stages"]
    held = [stage["resident"] if option == "--stage-graph" else stage["memory"]["weights, gradients, optimizer"]
            for stage in stages]
    problem = load_problem(blocks)
    assert [device.static for device in problem.devices] == held and min(held) > 2**20
    assert {(device.memory or 0) + device.static for device in problem.devices} == {2**30}  # 2 GiB less the reserve
    told = shows("solve", blocks, "-n", "4", "--effort", "1", "-o", schedule)
    found = load_schedule(schedule)
    assert found.solver["static_memory"] == held and found.solver["gpu_memory"] == [2**30] * len(held)
    largest = max(peak + static for peak, static in zip(found.peak_memory, held, strict=True))
    assert f"{largest / 2**20:.1f} MiB" in told
    assert main(["check", str(schedule)]) == 0


def test_what_devices_hold_all_the_time_is_read_back() -> None:
    nodes = tuple(Node(f"n{i}", (1.0,), 3.0 + i, 1.0) for i in range(2))
    graph = place_graph(PlacementProblem("p", (DeviceKind("gpu", 2, 10.0),), nodes, (PlacementTensor(0, (1,)),)),
                        effort=1.0)
    blocks = blocks_of(graph)
    assert [(device.memory, device.static) for device in blocks.devices] == [(7.0, 3.0), (6.0, 4.0)]
    assert problem_from_json(problem_to_json(blocks)) == blocks
    plain = problem_to_json(weft.solve(blocks, micro_batches=2, effort=1.0).problem)["devices"]
    assert plain[0] == {"name": "gpu0", "memory": 7.0, "static": 3.0}


def test_devices_without_limits_show_what_they_hold_too() -> None:
    graph = place_graph(PlacementProblem("p", (DeviceKind("gpu", 1),), (Node("n", (1.0,), 3.0, 1.0),), ()), effort=1.0)
    found = weft.solve(blocks_of(graph), micro_batches=2, effort=1.0)
    assert found.solver["static_memory"] == [3.0] and "gpu_memory" not in found.solver


@pytest.mark.parametrize("static", [-1, float("nan")])
def test_static_memory_that_means_nothing_is_refused(static: float) -> None:
    with pytest.raises(ProblemError, match="device 'gpu': static is"):
        Device("gpu", 1, static)
