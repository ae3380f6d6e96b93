"""The ``model`` section of a spec without a family of the zoo: listed layers, a config.json, an operator graph; and the
detection of its kind.

The ``model`` section of a spec of a graph neural network: a graph and its layers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from weft.models.files.limits import MAX_LAYERS, MAX_SEQUENCE
from weft.models.graph_network.graph import MOST
from weft.models.spec.base import Section, Width, divides, refuse
from weft.models.spec.fields import Bytes, Name, Seconds, SomeSeconds
from weft.models.spec.quantities import LARGEST

#: The kinds of ``model`` section; pydantic puts these tags into error locations.
FAMILY, EXPLICIT, CONFIG, GRAPH, GRAPH_NETWORK = "family:", "layers:", "config:", "graph:", "graph-network:"


class LayerSpec(Section):
    """One layer with its costs for one micro-batch; ``repeat`` puts several equal ones in a row."""

    name: Name = Field(description="Name of the layer; with repeat, '.0', '.1', ... are added.", examples=["block"])
    repeat: int = Field(default=1, ge=1, le=MAX_LAYERS, description="How many of these follow each other.")
    forward: SomeSeconds = Field(description="Time of the forward (seconds, or text with a unit); at least 1 ns.",
                             examples=["4.1 ms"])
    backward: SomeSeconds | None = Field(
        default=None, description="Time of the whole backward, at least 1 ns. Training needs this, or both input_grad "
        "and weight_grad.", examples=["8.2 ms"])
    input_grad: Seconds | None = Field(default=None, description="Time of the input-gradient part of the backward.",
                                       examples=["4.3 ms"])
    weight_grad: Seconds | None = Field(default=None, description="Time of the weight-gradient part of the backward.",
                                        examples=["3.9 ms"])
    activation_memory: Bytes = Field(
        default=0, description="What one micro-batch keeps from its forward for its backward, the layer's input "
        "included (bytes, or text with a unit).", examples=["776 MiB"])
    weight_grad_memory: Bytes | None = Field(
        default=None, description="What is still kept between input_grad and weight_grad: the inputs of linear "
        "layers and the gradients of their outputs. Default: all of activation_memory.", examples=["128 MiB"])
    workspace: Bytes = Field(
        default=0, description="Needed only while a block of this layer runs.", examples=["512 MiB"])
    weights: Bytes | None = Field(
        default=None, description="Size of the parameters. Give this or parameters; default none.", examples=["96 MiB"])
    parameters: int | None = Field(default=None, ge=0, le=LARGEST, description="Number of parameters.",
                                   examples=[50331648])
    output: Bytes = Field(
        default=0, description="What the next layer gets, and the size of its gradient.", examples=["8 MiB"])

    @model_validator(mode="after")
    def _check(self) -> LayerSpec:
        if (self.input_grad is None) != (self.weight_grad is None):
            refuse("input_grad and weight_grad come together, one of them is missing")
        if self.backward is not None and self.input_grad is not None:
            refuse("give either backward, or input_grad and weight_grad, not both")
        if self.input_grad is not None and round(self.input_grad + (self.weight_grad or 0), 9) <= 0:
            refuse("input_grad and weight_grad must be greater than 0 together (at least 1 ns)")
        if self.weights is not None and self.parameters is not None:
            refuse("give either weights (their size) or parameters (their number), not both")
        return self


class ExplicitModel(Section):
    """A chain of layers, each with its costs."""

    layers: tuple[LayerSpec, ...] = Field(strict=False, min_length=1, description="The layers, first to last.")

    @model_validator(mode="after")
    def _check(self) -> ExplicitModel:
        count = sum(layer.repeat for layer in self.layers)
        if count > MAX_LAYERS:
            refuse(f"layers are {count} with their repeats, at most {MAX_LAYERS} are supported")
        names = [layer.name for layer in self.layers]
        for name in names:
            if names.count(name) > 1:
                refuse(f"layers: the name {name!r} is used twice")
        return self


class ConfigModel(Section):
    """A model whose sizes a Hugging Face config.json tells."""

    config: Name = Field(description="Path of the config.json, relative to this file; its model_type says the family.",
                         examples=["models/gpt2/config.json"])
    sequence: int | None = Field(default=None, ge=1, le=MAX_SEQUENCE, description="Tokens in a sequence (for an "
                                 "encoder and decoder, of each). Default: the most that the model was made for.")


class GraphModel(Section):
    """A model of one's own as an operator graph, such as one captured from PyTorch; its layers run in order."""

    graph: Name = Field(description="Path of a weft.operators/1 file, relative to this file: one micro-batch of the "
                        "size it was made for.", examples=["my_model.json"])


def kind_of_section(value: Any) -> str | None:
    """The intended kind of ``model`` section of ``value``, a section or a mapping: a config, an operator graph,
    explicit if it lists layers, else a family."""
    if isinstance(value, Section):
        return {ExplicitModel: EXPLICIT, ConfigModel: CONFIG, GraphModel: GRAPH,
                GraphNetworkModel: GRAPH_NETWORK}.get(type(value), FAMILY)
    return kind_of_model(value)


def kind_of_model(value: object) -> str:
    """The intended kind of ``model`` section of a mapping."""
    if not isinstance(value, dict) or "family" in value:
        return GRAPH_NETWORK if isinstance(value, dict) and value["family"] == "graph-network" else FAMILY
    for key, kind in (("config", CONFIG), ("graph", GRAPH)):
        if key in value:
            return kind
    return EXPLICIT if not isinstance(value.get("layers"), int) else FAMILY


#: Tags of the kinds of graphs.
FILE, DRAWN = "graph file", "drawn graph"
#: Maximum chunks along a side.
_MOST_CHUNKS = 64


class DrawnGraph(Section):
    """A graph with random edges, in place of a file."""

    vertices: int = Field(ge=1, le=MOST, description="Number of vertices.", examples=[20000])
    edges: int = Field(ge=0, le=MOST, description="Number of edges.", examples=[400000])
    skewed: bool = Field(default=False, description="Whether degrees follow a power law. Default false: all vertices "
                         "are alike.")
    seed: int = Field(default=0, ge=0, le=MOST, description="What the edges are drawn from. Default 0.")


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
    graph: Annotated[Annotated[Name, Tag(FILE)] | Annotated[DrawnGraph, Tag(DRAWN)], Discriminator(
        lambda given: DRAWN if isinstance(given, (dict, DrawnGraph)) else FILE)] = Field(
            description="Path of a graph (.npz, .mtx, or an edge a line), relative to this file; or a drawn one: its "
                        "vertices and edges.", examples=["cora.npz"])
    features: Width | Name | None = Field(
        default=None, description="Columns of the vertices' features, where the graph's file has none; or the path of "
        "an .npy file with a row a vertex, which is never read whole.", examples=[64])
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Share of each layer's inputs that training leaves "
                           "out. Default 0.", examples=[0.5])
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
