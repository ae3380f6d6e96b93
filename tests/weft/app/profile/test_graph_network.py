"""``weft profile --graph-network``: counts against torch's own, times, and what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import weft
from tests.support.commands import refusal, shows
from tests.support.graph_networks import odd_graph
from weft.app.profile.graph_network import FUSED, GraphNetworkStages, StageFigures, stage_runs
from weft.models.graph_network.graph import Graph, drawn_graph
from weft.models.graph_network.layers import KINDS, LayerShape, WorkCounts
from weft.runtime.graph_network.layers import ready

VIEWS = {"view", "_unsafe_view", "slice", "select", "expand", "t", "unsqueeze", "squeeze", "detach", "alias",
         "as_strided", "transpose", "_reshape_alias", "lift_fresh"}
COPIES = {"clone", "cat", "fill_", "masked_fill_", "nan_to_num_", "copy_", "ones", "_to_copy", "zeros", "empty", "sort"}
CHANGED = ("add_", "mul_", "div_", "sub_", "exp_", "masked_fill_", "nan_to_num_")


def size(tensor: Tensor) -> int:
    """Bytes of its elements, of a sparse one also of its indices."""
    if tensor.layout is torch.sparse_csr:
        return sum(map(size, (tensor.crow_indices(), tensor.col_indices(), tensor.values())))
    return tensor.numel() * tensor.element_size()


class OperationCounts(TorchDispatchMode):
    """Inside, ``flops``, ``bytes``, and ``products``, the FLOPs of dense matrix products alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.bytes = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        given, made = ([leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor)] for part in (args, result))
        if name in VIEWS or "sparse" in name or name.endswith(("_indices", "values")):
            return result
        if name in ("index_select", "index_add_", "index_reduce_"):
            of, _, index, *added = args
            wide = of[0].numel() * len(index)
            moved = 2 if name == "index_select" else 3
            assert not added or added[0].numel() == wide
            self.flops += wide if added else 0
            self.bytes += moved * wide * of.element_size() + size(index)
            return result
        if name == "mm":
            left, right = args
            if left.layout is torch.sparse_csr:
                self.flops += 2 * left.values().numel() * right.shape[1]
            else:
                self.products += 2 * left.shape[0] * left.shape[1] * right.shape[1]
                self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        elif name == "sum":
            self.flops += given[0].numel()
        elif name not in COPIES:
            self.flops += made[0].numel()
        self.bytes += sum(map(size, given)) + sum(map(size, made))
        return result


SHAPES = [LayerShape(kind, inputs, outputs, heads) for kind in KINDS for inputs, outputs, heads in (
    (6, 8, 1), (5, 1, 1), *(((7, 12, 3),) if kind == "gat" else ()))]
GRAPHS = [odd_graph(), drawn_graph(50, 0), drawn_graph(1, 9, seed=2)]


def runs_of(shape: LayerShape, graph: Graph, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    layer = ready(shape.kind, shape.inputs, shape.outputs, shape.heads)
    draw = torch.Generator().manual_seed(0)
    p = {name: torch.rand(size, generator=draw, dtype=dtype) for name, size in layer.shapes.items()}
    x = torch.rand(graph.vertices, shape.inputs, generator=draw, dtype=dtype)
    state, runs = stage_runs(layer, p, x, graph)
    return {stage: partial(run, state()) for stage, run in runs.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kind} {shape.inputs}-{shape.outputs}")
def test_closed_forms_are_what_torch_computes(shape: LayerShape, graph: Graph, dtype: torch.dtype) -> None:
    graph = graph.with_loops() if shape.loops else graph
    size = (graph.vertices, graph.edges, dtype.itemsize)
    expected: dict[str, WorkCounts] = dict(shape.counts(*size).items())
    if shape.fuses:
        expected[FUSED] = shape.fused(*size)
    for stage, run in runs_of(shape, graph, dtype).items():
        with torch.no_grad(), OperationCounts() as counts:
            run()
        assert (stage, counts.flops, counts.bytes) == (stage, expected[stage].flops, expected[stage].bytes)
        with torch.no_grad(), FlopCounterMode(display=False) as theirs:
            run()
        if stage != FUSED:  # torch takes a sparse product for a dense one
            assert theirs.get_total_flops() == counts.products


def test_products_are_those_of_pytorch_geometric() -> None:
    nn, graph = pytest.importorskip("torch_geometric.nn"), odd_graph()
    layers = {"gcn": nn.GCNConv(6, 8), "sage-pool": nn.SAGEConv(6, 8, aggr="max", project=True),
              "gat": nn.GATConv(6, 4, heads=2), "gated-gcn": nn.ResGatedGraphConv(6, 8)}
    edges = torch.stack([torch.as_tensor(graph.source), torch.as_tensor(graph.target)]).long()
    for shape in (LayerShape(kind, 6, 8, 2 if kind == "gat" else 1) for kind in KINDS if kind in layers):
        with torch.no_grad(), FlopCounterMode(display=False) as theirs:
            layers[shape.kind](torch.as_tensor(graph.features).float(), edges)
        run = runs_of(shape, graph.with_loops() if shape.loops else graph, torch.float32)["apply_vertex"]
        with torch.no_grad(), OperationCounts() as mine:
            run()
        assert mine.products == theirs.get_total_flops()


def test_stages_of_a_fusing_layer_are_those_of_the_sparse_product() -> None:
    shape, graph = LayerShape("gcn", 6, 8), odd_graph().with_loops()
    runs = runs_of(shape, graph, torch.float64)
    torch.testing.assert_close(runs["gather"](), runs[FUSED]())


def figures(stage: str, seconds: float, layer: int = 0) -> StageFigures:
    return StageFigures(layer, "gcn", stage, 1, 1, seconds, 0.0, 1.0, "memory")


def test_seconds_take_the_fused_stage_for_the_three_it_replaces() -> None:
    stages = (figures("scatter", 1), figures("apply_edge", 2), figures("gather", 3), figures("apply_vertex", 4),
              figures(FUSED, 0.5), figures("gather", 7, 1), figures("apply_vertex", 8, 1))
    found = GraphNetworkStages("g", 1, 1, "cpu", "2", 1.0, 1.0, stages)
    assert found.seconds(fused=False) == {"scatter": 1, "apply_edge": 2, "gather": 10, "apply_vertex": 12, FUSED: 0}
    assert found.seconds(fused=True) == {"scatter": 0, "apply_edge": 0, "gather": 7, "apply_vertex": 12, FUSED: 0.5}


def test_profile_of_a_graph_network(tmp_path: Path) -> None:
    graph = odd_graph()
    np.savez(tmp_path / "g.npz", source=graph.source, target=graph.target, vertices=40,
             features=np.ones((40, 6), np.float32), label=np.zeros(40, np.int64))
    asked = ["profile", "--graph-network", "gcn", f"{tmp_path}/g.npz", "--repeats", "1"]
    told = shows(*asked, "-o", f"{tmp_path}/stages.svg")
    assert "apply vertex" in told and "fused" in (tmp_path / "stages.svg").read_text()
    found = json.loads(shows(*asked, "--json"))
    assert found["format"] == "weft.graph-network-stages/1"
    assert [stage["stage"] for stage in found["stages"]] == 2 * [
        "scatter", "apply_edge", "gather", "apply_vertex", "fused"]
    assert found["stages"][4]["flops"] == LayerShape("gcn", 6, 16).fused(40, graph.with_loops().edges).flops
    assert {stage["bound"] for stage in found["stages"] if stage["stage"] == "apply_edge"} == {"nothing"}
    spec = tmp_path / "s.yaml"
    spec.write_text("model: {family: graph-network, graph: g.npz, layers: [{layer: gat, width: 4, heads: 2}]}\n"
                    "cluster: {gpus: 1, memory: 1 MB, device: cpu, host_bandwidth: 1 GB/s}\n"
                    "training: {micro_batches: 1, parameter_bytes: 4}\n")
    assert [stage.kind for stage in weft.profile_graph_network(spec, repeats=1).stages] == ["gat"] * 4
    for wrong, said in ((["gin", f"{tmp_path}/g.npz"], "--graph-network is 'gin', it must be gcn, sage-mean"),
                        (["gcn"], "gcn needs a graph"), (["gcn", "no.npz"], "no such file"),
                        (["gcn", f"{tmp_path}/g.npz", "--stages", "a:b"], "goes with neither --stages nor --problem"),
                        ([*asked[2:4], "-o", "x.txt"], "x.txt")):
        assert said in refusal("profile", "--graph-network", *wrong)
