"""Operator graphs in the dnn-partitioning and Piper formats, and `weft place` on them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support import SHARED, refusal, shows
from weft.app.place.place import parse_devices
from weft.models.graph.formats import load_profiled_graph
from weft.solver.io.entries import FormatError


def node(number: int, time: float, size: float = 10.0, **further: Any) -> dict[str, Any]:
    return {"id": number, "supportedOnFpga": 1, "cpuLatency": 10 * time, "fpgaLatency": time, "size": size,
            "isBackwardNode": 0, **further}


def edge(source: int, target: int, cost: float) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}


PROFILED = {
    "maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1,
    "nodes": [node(7, 4, name="first", colorClass=1), node(8, 3, name="same"), node(9, 3, name="same"),
              node(10, 2, colorClass=1, isBackwardNode=True)],
    "edges": [edge(7, 8, 0.5), edge(8, 9, 0.25), edge(9, 10, 0.5)],
}


def choice(name: str, time: float, a: float, b: float) -> dict[str, Any]:
    return {"id": name, "timePerSample": time, "parameterSize": 1.0, "memoryUsageA": a, "memoryUsageB": b,
            "syncTimeFw": {}, "syncTimeBw": {}}


PIPER = {
    "maxDevices": 2, "maxMemoryPerDevice": 100.0, "bandwidth": 8.0, "mbsInBatch": 4,
    "nodes": [{"id": i, "TMPCs": {"1": [choice("vanilla", 1.0, 20.0, 5.0), choice("activation recomp", 1.5, 2.0, 6.0)],
                                  "2": [choice("vanilla", 0.6, 10.0, 3.0)]}} for i in range(4)],
    "edges": [{"sourceId": i, "destId": i + 1, "communicationCost": 1.0} for i in range(3)],
}


def written(folder: Path, value: object) -> Path:
    path = folder / "graph.json"
    path.write_text(json.dumps(value))
    return path


def test_dnn_partitioning_is_read(tmp_path: Path) -> None:
    problem = load_profiled_graph(written(tmp_path, PROFILED))
    assert [n.name for n in problem.nodes] == ["first", "same (8)", "same (9)", "10"]
    assert [(k.name, k.count, k.memory, k.transfer_factor) for k in problem.kinds] == [
        ("accelerator", 2, 100.0, 1.0), ("cpu", 1, None, 0.0)]
    assert problem.nodes[0].times == (4.0, 40.0)
    assert problem.nodes[3].backward and problem.classes == ((0, 3), (1,), (2,))
    assert [(t.producer, t.consumers, t.time) for t in problem.tensors] == [
        (0, (1,), 0.5), (1, (2,), 0.25), (2, (3,), 0.5)]


def test_piper_is_read_without_replication(tmp_path: Path) -> None:
    path = written(tmp_path, PIPER)
    problem = load_profiled_graph(path)
    assert problem.nodes[0].times == (1.0,)
    assert (problem.nodes[0].resident, problem.nodes[0].per_micro_batch) == (5.0, 20.0)
    assert problem.tensors[0].time == 0.25  # there and back, a byte each, at 8 bytes a second
    assert problem.micro_batches == 4 and problem.time_unit == "s"
    recomputed = load_profiled_graph(path, recompute=True)
    assert recomputed.nodes[0].times == (1.5,) and recomputed.nodes[0].per_micro_batch == 2.0
    # Two stages of two operators would hold 2 * (2 * 20 + 5) = 90 and 50.
    assert weft.place(path).objective == 2.25


def changed(value: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(value)
    change(value)
    return value


@pytest.mark.parametrize(("base", "change", "sentence"), [
    (PROFILED, lambda v: v["nodes"][1].pop("fpgaLatency"), "nodes[1]: the field 'fpgaLatency' is missing"),
    (PROFILED, lambda v: v["nodes"][1].update(fpgaLatency=-1), "nodes[1]: fpgaLatency is -1, it must be 0 or more"),
    (PROFILED, lambda v: v["nodes"][1].update(cpuLatency="fast"),
     "nodes[1]: cpuLatency is \"fast\", it must be a finite number of at most 1e+100"),
    (PROFILED, lambda v: v["nodes"][1].update(size=float("inf")), "nodes[1]: size is Infinity, it must be a finite "
                                                                  "number of at most 1e+100"),
    (PROFILED, lambda v: v["nodes"][1].update(id=7), "nodes[1]: id 7 is taken by nodes[0], every node needs its own"),
    (PROFILED, lambda v: v["nodes"][1].update(isBackwardNode=2),
     "nodes[1]: isBackwardNode is 2, it must be true, false, 0 or 1"),
    (PROFILED, lambda v: v["nodes"][1].update(colorClass="x"), "nodes[1]: colorClass is 'x', it must be a whole "
                                                               "number"),
    (PROFILED, lambda v: v["edges"][0].pop("cost"), "edges[0]: the field 'cost' is missing"),
    (PROFILED, lambda v: v["edges"][0].update(cost=-0.5), "edges[0]: cost is -0.5, it must be 0 or more"),
    (PROFILED, lambda v: v["edges"][1].update(destId=99), "edges[1]: destId is 99, but no node has that id"),
    (PROFILED, lambda v: v["edges"].append(edge(7, 9, 1.5)),
     "edges[3]: cost is 1.5, but another edge from node 7 says 0.5; what a node sends costs the same on all its edges"),
    (PROFILED, lambda v: v["edges"].append(edge(9, 8, 0.5)),
     " the operators same (8) -> same (9) -> same (8) form a cycle; an operator graph has none, remove one of these "
     "edges"),
    (PROFILED, lambda v: v.update(nodes=[], edges=[]), " the graph has no operators, it needs at least one"),
    (PROFILED, lambda v: v.update(maxFPGAs=0, maxCPUs=0), " there are no devices, at least one is needed"),
    (PROFILED, lambda v: (v.update(maxCPUs=0), v["nodes"][1].update(supportedOnFpga=0)),
     " operator 'same (8)' runs on cpu only, and there is no such device; add one, or a time on another kind"),
    (PROFILED, lambda v: v.pop("maxCPUs"), " the field 'maxCPUs' is missing"),
    (PROFILED, lambda v: (v.pop("maxFPGAs"), v.pop("maxSizePerFPGA")),
     " is no operator graph that is known: the dnn-partitioning format has a field 'maxFPGAs', the Piper format a "
     "field 'maxDevices'"),
    (PIPER, lambda v: v["nodes"][2]["TMPCs"].pop("1"), "nodes[2]: TMPCs: the field '1' is missing"),
    (PIPER, lambda v: v["nodes"][2]["TMPCs"].update({"1": []}),
     "nodes[2]: TMPCs: 1 is empty, it needs at least one way to run on one device"),
    (PIPER, lambda v: v["nodes"][2]["TMPCs"]["1"][1].update(memoryUsageA=-1),
     "nodes[2]: TMPCs: 1[1]: memoryUsageA is -1, it must be 0 or more"),
    (PIPER, lambda v: v.update(bandwidth=0), " bandwidth is 0, it must be greater than 0"),
    (PIPER, lambda v: v["edges"].append(v["edges"][0]),
     "edges[3]: the edge from 0 to 1 is listed twice; leave one out"),
])
def test_a_graph_that_is_wrong_is_one_sentence(base: dict[str, Any], change: Callable[[dict[str, Any]], object],
                                               sentence: str, tmp_path: Path) -> None:
    path = written(tmp_path, changed(base, change))
    with pytest.raises(FormatError) as refused:
        load_profiled_graph(path)
    assert str(refused.value) == f"{path}: {sentence.strip()}"


# -- the command line ----------------------------------------------------------------------------------------------


def test_devices_on_the_command_line(tmp_path: Path) -> None:
    path = str(written(tmp_path, PROFILED))
    told = shows("place", path, "--json", "--quiet", "--devices", "accelerator=1,cpu=0")
    assert json.loads(told)["objective"] == 12.0
    said = refusal("place", path, "--quiet", "--devices", "accelerator=2:15,cpu=0", status=1)
    assert said == (
        "weft: operator 'first' (with 1 more that must share its device) holds 20 byte, a device of kind accelerator "
        "has 15 byte: 5 byte are missing\n")
    said = refusal("place", path, "--quiet", "--devices", "tpu=1")
    assert "the graph knows no kind 'tpu', it has times for accelerator, cpu" in said
    assert parse_devices("accelerator=4:16GiB, cpu=0") == {"accelerator": (4, 16 * 2.0**30), "cpu": (0, None)}
    for text in ("accelerator", "accelerator=x", "cpu=1,cpu=2", "=3"):
        with pytest.raises(ValueError, match="it must be like accelerator=4,cpu=1"):
            parse_devices(text)


# -- published optima ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "optimum"), [
    ("bert24_training", 41.7458), ("bert24_inference", 17.7899), ("gnmt_training", 107.004),
    ("resnet50_inference", 33.7747), ("bert_l-3_training", 65.3031), ("bert_l-3_inference", 27.9186)])
def test_the_published_dynamic_program_agrees(name: str, optimum: float) -> None:
    path = SHARED / "dnn-partitioning" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    found = weft.place(path, time_limit=3000)
    assert found.status == "optimal"
    assert float(f"{found.objective:.6g}") == optimum
