"""The multimodal transformer of the GraphPipe evaluation as an operator graph (Jeon et al., ASPLOS 2025, appendix A.2).
"""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph
from weft.models.spec.families import MmtModel
from weft.models.zoo.lib.builder import GraphBuilder, concatenation
from weft.models.zoo.lib.transformers import AttentionSizes, LayerSizes, transformer_layer


def mmt_graph(model: MmtModel, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` samples: ``branch0.layer0`` ..., one branch after another, and ``join``."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=model.dropout)
    ends = []
    sizes = LayerSizes(AttentionSizes(model.heads), model.feed_forward)
    for branch in range(model.branches):
        x = b.input(f"features{branch}", (batch, model.sequence, model.hidden))
        for i in range(model.layers):
            with b.layer(f"branch{branch}.layer{i}"):
                x = transformer_layer(b, x, sizes)
        ends.append(x)
    with b.layer("join"):
        return b.graph(concatenation(b, ends, 1, "joined"))
