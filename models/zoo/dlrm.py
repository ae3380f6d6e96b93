"""Deep learning recommendation models as operator graphs (Naumov et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.models.graph.operators import OperatorGraph, Split, Tensor, Work
from weft.models.spec.families import DlrmModel
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved, concatenation, dense_layers


def dlrm_graph(model: DlrmModel, batch: int = 1, *, dtype: str = "float32", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` samples: layers ``dense0`` ..., ``table0`` ..., ``interaction``, ``top``."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=False)
    vectors = []
    for branch in range(model.dense_branches):
        x = b.input(f"features{branch}", (batch, model.dense))
        with b.layer(f"dense{branch}"):
            vectors.append(dense_layers(b, x, model.bottom))
    for i, rows in enumerate(model.tables):
        with b.layer(f"table{i}"):
            vectors.append(_bag(b, b.input(f"ids{i}", (batch, model.bag), "int64"), rows, model.dimension))
    with b.layer("interaction"):
        joined = _products(b, vectors) if model.interaction == "dot" else concatenation(b, vectors, 1, "joined")
    with b.layer("top"):
        return b.graph(dense_layers(b, joined, model.top, last="none" if model.top[-1] == 1 else "relu"))


def _bag(b: GraphBuilder, ids: Tensor, rows: int, width: int) -> Tensor:
    """The sum of the rows that a sample names; the table's gradient is sparse: only those rows are written."""
    y = b.tensor("bag", (ids.shape[0], width))
    table = b.parameter("weight", rows, width)
    touched = math.prod(ids.shape) * y.bytes // ids.shape[0]
    b.add("embedding_bag", "bag", [ids], [y],
          work=Passes(forward=Work(float(math.prod(ids.shape) * width), touched + ids.bytes, y.bytes),
                      weight_grad=Work(float(math.prod(ids.shape) * width), y.bytes + ids.bytes, touched)),
          parameters=[table], saved=Saved([ids], deferred=[ids]),
          splits=[b.along("batch", 0, [ids], [y]),
                  Split("vocabulary", rows, {}, {y.name: "partial"}, frozenset({table.name})),
                  Split("hidden", width, {}, {y.name: 1}, frozenset({table.name}))])
    return y


def _products(b: GraphBuilder, vectors: Sequence[Tensor]) -> Tensor:
    """The dense vector and the products of every two vectors."""
    batch, width = vectors[0].shape
    count = len(vectors)
    y = b.tensor("products", (batch, width + count * (count - 1) // 2))
    flops = 2.0 * batch * count * count * width
    b.add("matmul", "products", vectors, [y], work=Passes(flops, input_flops=2 * flops), saved=Saved(vectors),
          splits=[b.along("batch", 0, vectors, [y])])
    return y
