"""A network's layers as the planner sees them: columns, and what computations need, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.models.graph_network.grid import Grid
from weft.models.graph_network.steps import LayerSize, Need

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from weft.models.graph_network.graph import Graph
    from weft.runtime.graph_network.layers import Network

__all__ = ["grids_of", "layer_sizes"]


def layer_sizes(network: Network, parameters: Sequence[Mapping[str, Tensor]], training: bool = True
                ) -> tuple[LayerSize, ...]:
    """Those of ``network``. Raises ``ValueError`` for layers whose functions do not fit each other."""
    import torch

    from weft.runtime.graph_network.kernels import Entry, widths
    from weft.runtime.graph_network.needs import needs

    inputs, found = network.inputs, []
    for layer, p in zip(network.layers, parameters, strict=True):
        own = {name: value.detach().cpu() for name, value in p.items()}
        dtype = next(iter(own.values())).dtype
        width = widths(layer, own, inputs, dtype)
        one = torch.zeros((1, inputs), dtype=dtype)
        outputs = layer.apply_vertex(own, one, one.new_zeros(1, width.gathered), one.new_ones(1, 1)).shape[1]
        measured = needs(layer, own, inputs, outputs, width, dtype, Entry(network.dropout))
        found.append(LayerSize(
            inputs, outputs, width.source, width.target, sum(width.state(layer.gather, training)),
            sum(width.back(layer.gather)), {kind: Need(*need) for kind, need in measured.items()}, layer.loops,
            layer.fuses))
        inputs = outputs
    return tuple(found)


def grids_of(network: Network, graph: Graph, chunks: int) -> dict[bool, Grid]:
    """The grids that the layers of ``network`` run on, by whether they have self-loops."""
    return {loops: Grid(graph.with_loops() if loops else graph, chunks)
            for loops in sorted({layer.loops for layer in network.layers})}
