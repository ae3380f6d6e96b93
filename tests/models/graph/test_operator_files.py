"""``weft.operators/1``: what is written is read back, and what is wrong is said with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.models.graph.operator_files import graph_from_json, graph_to_json, load_graph, save_graph
from weft.models.graph.operators import Operator, OperatorGraph, Parameter, Split, Tensor, Work
from weft.solver.io.entries import FormatError

AMOUNTS = st.integers(0, 2**50)
WORKS = st.builds(Work, st.one_of(AMOUNTS, st.floats(0, 1e18)), AMOUNTS, AMOUNTS)
SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
SHARED = tuple(Parameter(f"shared{i}", 2 * i, 4 * i, (i, 2)) for i in range(3))


@st.composite
def graphs(draw: st.DrawFn) -> OperatorGraph:
    """Chains with skips: every operator reads any earlier tensors, and gives up to two, some of them views."""
    inputs = (Tensor("x", draw(AMOUNTS), draw(SHAPES), draw(st.sampled_from(["", "float16"]))),)
    tensors, operators = ["x"], []
    for i in range(draw(st.integers(1, 5))):
        reads = tuple(draw(st.lists(st.sampled_from(tensors), max_size=3, unique=True)))
        outputs = tuple(Tensor(f"t{i}.{k}", draw(AMOUNTS), draw(SHAPES), "int8",
                               draw(st.sampled_from([None, *reads]))) for k in range(draw(st.integers(0, 2))))
        internal = tuple(Tensor(f"s{i}.{k}", draw(AMOUNTS)) for k in range(draw(st.integers(0, 1))))
        mine = (*reads, *(tensor.name for tensor in (*outputs, *internal)))
        some = st.lists(st.sampled_from(mine), unique=True).map(tuple) if mine else st.just(())
        parameters = tuple(draw(st.lists(st.sampled_from(SHARED), max_size=2, unique=True)))
        split = Split("rows", draw(st.integers(1, 8)), {name: draw(st.sampled_from(["partial", 1])) for name in reads},
                      {tensor.name: 0 for tensor in outputs}, frozenset(p.name for p in parameters))
        operators.append(Operator(
            f"op{i}", draw(st.sampled_from(["linear", "add"])), draw(WORKS), reads, outputs,
            draw(st.none() | WORKS), draw(st.none() | WORKS), parameters, internal, draw(some),
            draw(st.none() | some), draw(AMOUNTS), draw(st.sampled_from([(), (split,)])),
            draw(st.sampled_from(["", "layer"])), draw(st.sampled_from([None, "word"])),
            draw(st.sampled_from([None, frozenset({"gpu", "cpu"})])),
            draw(st.sampled_from([(), (Parameter("statistics", 1, 4),)]))))
        tensors += [tensor.name for tensor in outputs]
    return OperatorGraph("model", tuple(operators), inputs, (tensors[-1],), draw(st.sampled_from([(), ("a note",)])))


@given(graphs())
def test_what_is_written_is_read_back(graph: OperatorGraph) -> None:
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


def small() -> dict[str, Any]:
    return graph_to_json(OperatorGraph(
        "m", (Operator("a", "linear", Work(2, 4, 4), ("x",), (Tensor("y", 4),), parameters=(Parameter("w", 1, 4),)),),
        (Tensor("x", 4),), ("y",)))


def test_a_file_goes_round(tmp_path: Path) -> None:
    graph = graph_from_json(small())
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph


@pytest.mark.parametrize(("path", "value", "message"), [
    (["format"], "weft.problem/1", r"g\.json: format is 'weft\.problem/1', it must be 'weft\.operators/1'"),
    (["operators", 0, "layr"], "x", r"operators\[0\]: unknown field 'layr'; did you mean 'layer'\?"),
    (["operators", 0, "forward"], [1, 2], r"operators\[0\]: forward must be a list of flops"),
    (["operators", 0, "forward"], [1, -2, 0], r"operators\[0\]: forward: bytes_read is -2"),
    (["operators", 0, "forward"], [-1, 2, 0], r"operators\[0\]: forward: flops is -1"),
    (["operators", 0, "inputs"], [3], r"operators\[0\]: inputs must be a list of texts"),
    (["operators", 0, "inputs"], ["ghost"], r"g\.json: operator 'a': reads 'ghost', which nothing produces"),
    (["operators", 0, "parameters"], ["v"], r"operators\[0\]: parameters: 'v' is not listed in the file's parameters"),
    (["operators", 0, "splits"], [{"dimension": "d", "size": 2, "inputs": {"x": "half"}}],
     r"splits\[0\]: inputs: x: is neither 'whole'"),
    (["inputs", 0, "bytes"], 1.5, r"inputs\[0\]: bytes is 1\.5, it must be a whole number"),
    (["operators"], [], r"g\.json: m: has no operators"),
    (["outputs"], ["z"], r"g\.json: m: outputs: 'z' is produced by no operator"),
])
def test_a_fault_is_said_with_its_place(path: list[Any], value: Any, message: str) -> None:
    found = small()
    at: Any = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(FormatError, match=message):
        graph_from_json(found, "g.json")
