"""CANDLE-Uno as an operator graph (ECP-CANDLE Benchmarks, Pilot1/Uno)."""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph
from weft.models.spec.families import UnoModel
from weft.models.zoo.lib.builder import GraphBuilder, concatenation, dense_layers, linear


def uno_graph(model: UnoModel, batch: int = 1, *, dtype: str = "float32", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` samples: layers ``tower0`` ..., ``joint``."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=False)
    ends = []
    for i, width in enumerate(model.features):
        x = b.input(f"features{i}", (batch, width))
        with b.layer(f"tower{i}"):
            ends.append(dense_layers(b, x, model.tower))
    if model.plain:
        ends.append(b.input("plain", (batch, model.plain)))
    with b.layer("joint"):
        x = dense_layers(b, concatenation(b, ends, 1, "joined"), model.joint)
        return b.graph(linear(b, x, 1, "response"))
