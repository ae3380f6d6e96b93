"""The ready layers against PyTorch Geometric's, where it is installed."""

from typing import Any

import pytest
import torch

from tests.oracles.dense_graph_network import dense
from tests.support.graph_networks import edges_of, odd_graph
from weft.runtime.graph_network.layers import LAYERS, GraphNetwork, ready

NAMES = {
    "gcn": {"bias": "bias", "lin.weight": "weight"},
    "sage-mean": {"lin_l.weight": "weight", "lin_l.bias": "bias", "lin_r.weight": "own"},
    "sage-pool": {"lin.weight": "pool", "lin.bias": "pool_bias", "lin_l.weight": "weight", "lin_l.bias": "bias",
                  "lin_r.weight": "own"},
    "gat": {"att_src": "score", "att_dst": "score_target", "bias": "bias", "lin.weight": "weight"},
    "gated-gcn": {"bias": "bias", "lin_skip.weight": "own", **{
        f"lin_{name}.{part}": name if part == "weight" else f"{name}_bias"
        for name in ("key", "query", "value") for part in ("weight", "bias")}},
}


def theirs(kind: str, nn: Any) -> Any:
    return {"gcn": lambda: nn.GCNConv(6, 8), "sage-mean": lambda: nn.SAGEConv(6, 8),
            "sage-pool": lambda: nn.SAGEConv(6, 8, aggr="max", project=True), "gat": lambda: nn.GATConv(6, 4, heads=2),
            "gated-gcn": lambda: nn.ResGatedGraphConv(6, 8)}[kind]()


@pytest.mark.parametrize("kind", LAYERS)
def test_a_ready_layer_is_that_of_pytorch_geometric(kind: str) -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    graph = odd_graph()
    network = GraphNetwork((ready(kind, 6, 8, 2 if kind == "gat" else 1),), 6)
    parameters = network.initial(3, torch.float64)
    layer = theirs(kind, nn).double()
    other = dict(layer.named_parameters())
    with torch.no_grad():
        for name, own in NAMES[kind].items():
            value = parameters[0][own]
            other[name].copy_((value.T if value.ndim == 2 else value).reshape(other[name].shape))
    x = torch.as_tensor(graph.features)
    mine = dense(network, parameters, x, edges_of(network, graph))
    given = layer(x, torch.stack([torch.as_tensor(graph.source), torch.as_tensor(graph.target)]).long())
    torch.testing.assert_close(mine, given, rtol=1e-12, atol=1e-12)
    weight = torch.rand_like(mine)
    mine.backward(weight)  # type: ignore[no-untyped-call]
    given.backward(weight)
    for name, own in NAMES[kind].items():
        grad = parameters[0][own].grad
        assert grad is not None
        torch.testing.assert_close((grad.T if grad.ndim == 2 else grad).reshape(other[name].shape), other[name].grad,
                                   rtol=1e-11, atol=1e-11)
