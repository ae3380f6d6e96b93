"""Graph neural networks for tests: a graph with everything odd, networks of every ready layer, a streamed pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tests.oracles.dense_graph_network import dense
from weft.app.graph_network.planning import grids_of, layer_sizes
from weft.models.graph_network.graph import Graph, drawn_graph
from weft.models.graph_network.steps import Choice, Pass
from weft.runtime.graph_network.layers import GraphNetwork, ready
from weft.runtime.graph_network.training import static_bytes
from weft.solver import Schedule, baseline


def odd_graph(features: int = 6, classes: int = 3) -> Graph:
    """Skewed, with duplicate edges, self-loops, vertices without edges, and chunks without edges; some labels."""
    drawn, draw = drawn_graph(33, 200, skewed=True, seed=1), np.random.default_rng(0)
    twice = np.arange(5)
    return Graph("odd", 40, np.concatenate([drawn.source, drawn.source[twice], twice]),
                 np.concatenate([drawn.target, drawn.target[twice], twice]),
                 draw.standard_normal((40, features)), draw.integers(-1, classes, 40))


def network_of(kind: str, dropout: float = 0.0) -> GraphNetwork:
    """Two layers of ``kind`` on the features of :func:`odd_graph`."""
    heads = 2 if kind == "gat" else 1
    return GraphNetwork((ready(kind, 6, 8, heads), ready(kind, 8, 4, heads)), 6, dropout)


def edges_of(network: GraphNetwork, graph: Graph) -> list[tuple[Tensor, Tensor]]:
    """The edges of each layer, as the dense evaluation takes them."""
    graphs = [graph.with_loops() if layer.loops else graph for layer in network.layers]
    return [(torch.as_tensor(each.source).long(), torch.as_tensor(each.target).long()) for each in graphs]


def dense_pass(network: GraphNetwork, parameters: Sequence[Mapping[str, Tensor]], graph: Graph,
               seeds: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Outputs and loss of the whole graph at once, with gradients in ``parameters``."""
    for own in parameters:
        for value in own.values():
            value.grad = None
    y = dense(network, parameters, torch.as_tensor(graph.features), edges_of(network, graph), seeds)
    loss = torch.nn.functional.cross_entropy(y, torch.as_tensor(graph.labels).long(), ignore_index=-1)
    loss.backward()  # type: ignore[no-untyped-call]
    return y.detach(), loss.detach()


def planned_pass(network: GraphNetwork, parameters: Sequence[Mapping[str, Tensor]], graph: Graph, choice: Choice,
                 *, slack: float = 1.0, known: str = "stream") -> tuple[Pass, Schedule, int]:
    """A pass with the ``known`` schedule of it within the least memory, times ``slack``; and that budget."""
    steps = Pass(layer_sizes(network, parameters), grids_of(network, graph, choice.chunks), choice, 8)
    static = static_bytes(parameters)
    budget = round(steps.least_memory * slack) + static
    problem = steps.problem("pass", budget, static, lambda step: 1e-4 * (1 + step.edges / 50))
    return steps, baseline(known, problem, 1), budget
