"""Layers, defined by functions of vertices and edges and the name of an accumulator; and ready-made layers.

``apply_edge`` gets the values of the edges' sources and targets, one row per edge, and returns one message per edge
(with the accumulator ``softmax``: one score per head, and values); without it the message is the source's value.
``prepare`` computes these values once per vertex: the part of ApplyEdge that is equal for all edges of a vertex.
``apply_vertex`` gets a vertex's input, the accumulated values and its in-degree. No row may depend on another row, as
chunks may have any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Parameters: TypeAlias = Mapping[str, Tensor]
Gather: TypeAlias = Literal["sum", "mean", "max", "softmax"]
Message: TypeAlias = "Tensor | tuple[Tensor, Tensor]"


@dataclass(frozen=True)
class Layer:
    """One layer. ``shapes``: of its parameters by name. ``loops``: it is applied to the graph with exactly one
    self-loop at every vertex."""

    name: str
    gather: Gather
    shapes: Mapping[str, tuple[int, ...]]
    prepare: Callable[[Parameters, Tensor, Tensor], tuple[Tensor, Tensor | None]]
    apply_vertex: Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]
    apply_edge: Callable[[Parameters, Tensor, Tensor | None], Message] | None = None
    loops: bool = False

    @property
    def fuses(self) -> bool:
        """Whether Scatter, ApplyEdge and Gather can be one sparse product."""
        return self.apply_edge is None and self.gather in ("sum", "mean")


@dataclass(frozen=True)
class GraphNetwork:
    """A sequence of layers with ReLU between them. ``inputs``: the width of the features. ``dropout``: the dropout rate
    of each layer's inputs in training."""

    layers: tuple[Layer, ...]
    inputs: int
    dropout: float = 0.0

    def initial(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
        """Initial parameters of each layer: matrices by Glorot and Bengio's uniform initialisation, vectors 0, except a
        GAT's, which are initialised like matrices.
        """
        draw = torch.Generator().manual_seed(seed)
        found: list[dict[str, Tensor]] = []
        for layer in self.layers:
            found.append({})
            for name, shape in layer.shapes.items():
                limit = (6 / (sum(shape) if len(shape) > 1 else 1 + shape[0])) ** 0.5
                is_bias = len(shape) == 1 and not name.startswith("score")
                drawn = (torch.rand(shape, generator=draw, dtype=torch.float64) * 2 - 1) * (0 if is_bias else limit)
                found[-1][name] = drawn.to(dtype).requires_grad_()
        return found


def _gcn(inputs: int, outputs: int, heads: int) -> Layer:
    """Kipf and Welling, ICLR 2017: neighbours' values over the root of both in-degrees."""
    return Layer("gcn", "sum", {"weight": (inputs, outputs), "bias": (outputs,)},
                 lambda p, x, degree: (x @ p["weight"] * degree.rsqrt(), None),
                 lambda p, x, a, degree: a * degree.rsqrt() + p["bias"], loops=True)


def _sage_mean(inputs: int, outputs: int, heads: int) -> Layer:
    """Hamilton et al., NeurIPS 2017, with the mean; the product comes before it."""
    return Layer("sage-mean", "mean", {"weight": (inputs, outputs), "own": (inputs, outputs), "bias": (outputs,)},
                 lambda p, x, degree: (x @ p["weight"], None),
                 lambda p, x, a, degree: a + x @ p["own"] + p["bias"])


def _sage_pool(inputs: int, outputs: int, heads: int) -> Layer:
    """GraphSAGE with a projection and the maximum."""
    return Layer("sage-pool", "max", {"pool": (inputs, inputs), "pool_bias": (inputs,), "weight": (inputs, outputs),
                                      "own": (inputs, outputs), "bias": (outputs,)},
                 lambda p, x, degree: ((x @ p["pool"] + p["pool_bias"]).relu(), None),
                 lambda p, x, a, degree: a @ p["weight"] + x @ p["own"] + p["bias"])


def _gat(inputs: int, outputs: int, heads: int) -> Layer:
    """Velickovic et al., ICLR 2018; ``outputs`` are those of all heads."""
    def prepare(p: Parameters, x: Tensor, degree: Tensor) -> tuple[Tensor, Tensor]:
        values = x @ p["weight"]
        score, at_target = ((values * p[name]).view(len(x), heads, -1).sum(-1) for name in ("score", "score_target"))
        return torch.cat([values, score], 1), at_target

    def apply_edge(p: Parameters, source: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor]:
        assert target is not None
        return torch.nn.functional.leaky_relu(source[:, outputs:] + target, 0.2), source[:, :outputs]

    return Layer("gat", "softmax", {"weight": (inputs, outputs), "score": (outputs,), "score_target": (outputs,),
                                    "bias": (outputs,)},
                 prepare, lambda p, x, a, degree: a + p["bias"], apply_edge, loops=True)


def _gated_gcn(inputs: int, outputs: int, heads: int) -> Layer:
    """Bresson and Laurent, 2017 (NGra's G-GCN), a gate on every edge."""
    def prepare(p: Parameters, x: Tensor, degree: Tensor) -> tuple[Tensor, Tensor]:
        key, query, value = (x @ p[name] + p[f"{name}_bias"] for name in ("key", "query", "value"))
        return torch.cat([query, value], 1), key

    def apply_edge(p: Parameters, source: Tensor, target: Tensor | None) -> Tensor:
        assert target is not None
        return (target + source[:, :outputs]).sigmoid() * source[:, outputs:]

    wide = {"key": (inputs, outputs), "query": (inputs, outputs), "value": (inputs, outputs)}
    return Layer("gated-gcn", "sum", {**wide, **{f"{name}_bias": (outputs,) for name in wide},
                                      "own": (inputs, outputs), "bias": (outputs,)},
                 prepare, lambda p, x, a, degree: a + x @ p["own"] + p["bias"], apply_edge)


#: The ready-made layers by name, each made from its widths and heads.
LAYERS: Mapping[str, Callable[[int, int, int], Layer]] = {
    "gcn": _gcn, "sage-mean": _sage_mean, "sage-pool": _sage_pool, "gat": _gat, "gated-gcn": _gated_gcn}


def ready(kind: str, inputs: int, outputs: int, heads: int = 1) -> Layer:
    """The ready-made layer ``kind``; ``heads`` divide the ``outputs`` of ``gat``. Raises ``ValueError``."""
    if kind not in LAYERS:
        raise ValueError(f"the layer is {kind!r}, it must be one of {', '.join(LAYERS)}")
    if outputs % heads:
        raise ValueError(f"outputs is {outputs}, it must be a multiple of heads ({heads})")
    return LAYERS[kind](inputs, outputs, heads)
