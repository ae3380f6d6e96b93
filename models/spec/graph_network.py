"""The ``model`` section of a spec of a graph neural network: a graph and its layers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from weft.models.spec.base import Section, refuse
from weft.models.spec.fields import Name
from weft.models.spec.sizes import Width, divides

__all__ = ["DrawnGraph", "GraphNetworkModel", "NetworkLayer"]

#: The most vertices or edges of a drawn graph, and chunks along a side.
_MOST, _MOST_CHUNKS = 10**9, 64


class DrawnGraph(Section):
    """A graph with random edges, in place of a file."""

    vertices: int = Field(ge=1, le=_MOST, description="Number of vertices.", examples=[20000])
    edges: int = Field(ge=0, le=_MOST, description="Number of edges.", examples=[400000])
    skewed: bool = Field(default=False, description="Whether degrees follow a power law. Default false: all vertices "
                         "are alike.")
    seed: int = Field(default=0, ge=0, le=_MOST, description="What the edges are drawn from. Default 0.")


class NetworkLayer(Section):
    """One layer of a graph neural network."""

    layer: Literal["gcn", "sage-mean", "sage-pool", "gat", "gated-gcn"] = Field(
        description="What it computes.", examples=["gcn"])
    width: Width = Field(description="Columns of its output; of the last layer the classes.", examples=[16])
    heads: Width = Field(default=1, description="Heads of gat, which divide its width. Default 1.")

    @model_validator(mode="after")
    def _check(self) -> NetworkLayer:
        divides(self.heads, self.width, "heads", "width")
        if self.heads > 1 and self.layer != "gat":
            refuse(f"heads is {self.heads}, but layer is {self.layer}; only gat has heads")
        return self


class GraphNetworkModel(Section):
    """A graph neural network that is streamed: vertices in chunks, edges in chunks squared."""

    family: Literal["graph-network"] = Field(description="A graph neural network.")
    graph: Name | DrawnGraph = Field(description="Path of a graph (.npz, .mtx, or an edge a line), relative to this "
                                     "file; or a drawn one: its vertices and edges.", examples=["cora.npz"])
    features: Width | None = Field(default=None, description="Columns of the vertices' features, where the graph's "
                                   "file has none.", examples=[64])
    layers: tuple[NetworkLayer, ...] = Field(strict=False, min_length=1, max_length=64,
                                             description="The layers, first to last, with ReLU between them.")
    chunks: tuple[int, ...] | None = Field(
        default=None, strict=False, min_length=1, max_length=_MOST_CHUNKS, description="Numbers of vertex chunks to "
        "choose from. Default: the least with which a pass fits, and the next few.", examples=[[4, 6, 8]])

    @model_validator(mode="after")
    def _check(self) -> GraphNetworkModel:
        if self.chunks and not all(1 <= count <= _MOST_CHUNKS for count in self.chunks):
            refuse(f"chunks lists {', '.join(map(str, self.chunks))}, each must be from 1 to {_MOST_CHUNKS}")
        return self
