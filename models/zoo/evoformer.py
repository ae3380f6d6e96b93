"""The Evoformer stack of AlphaFold 2 as an operator graph (Jumper et al., Nature 2021, supplement 1.6).

Two representations run beside each other: the alignment's, (batch, sequences, residues, width), and the pairs',
(batch, residues, residues, width). With recycling the stack runs several times without gradients, with the same
parameters, and then once with them: several forwards for one backward. What a run hands to the next is added to its
inputs here; AlphaFold's own embedding of it, and all that stands before and behind the stack, is no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.models.graph.operators import OperatorGraph, Split, Tensor
from weft.models.spec.families import EvoformerModel
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved, activation, copy, linear, norm, pointwise
from weft.models.zoo.lib.transformers import AttentionSizes, attention


def evoformer_graph(model: EvoformerModel, batch: int = 1, *, dtype: str = "bfloat16",
                    training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` crops: layers ``recycle0.block0`` ... of runs without gradients, then ``block0`` ...

    Dropout of whole rows and columns is left out: its masks are small.
    """
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=False)
    msa_input = b.input("msa", (batch, model.sequences, model.residues, model.msa))
    pair_input = b.input("pair", (batch, model.residues, model.residues, model.pair))
    msa, pair = msa_input, pair_input
    for run in range(model.recycles):
        for i in range(model.blocks):
            with b.layer(f"recycle{run}.block{i}"), b.forward_only(f"block{i}"):
                msa, pair = _block(b, msa, pair, model)
                if i == model.blocks - 1:
                    msa = pointwise(b, "add", "recycled_msa", [msa, msa_input])
                    pair = pointwise(b, "add", "recycled_pair", [pair, pair_input])
    for i in range(model.blocks):
        with b.layer(f"block{i}"):
            msa, pair = _block(b, msa, pair, model)
    return b.graph(msa, pair)


def _block(b: GraphBuilder, msa: Tensor, pair: Tensor, model: EvoformerModel) -> tuple[Tensor, Tensor]:
    bias = _pair_bias(b, norm(b, pair, "row.pair_norm"), model.msa_heads, "row.bias")
    msa = _add(b, _gated_attention(b, norm(b, msa, "row.norm"), model.msa_heads, model.head_size, "row", [bias]), msa,
               "row.add")
    turned = _turned(b, norm(b, msa, "column.norm"), "column.turn")
    attended = _gated_attention(b, turned, model.msa_heads, model.head_size, "column", [])
    msa = _add(b, _turned(b, attended, "column.back"), msa, "column.add")
    msa = _transition(b, msa, model.transition, "msa_transition")
    pair = _add(b, _outer_product_mean(b, msa, model), pair, "outer.add")
    for name in ("outgoing", "incoming"):
        pair = _add(b, _triangle_product(b, pair, model.triangle, name), pair, f"{name}.add")
    for name in ("starting", "ending"):
        inner = norm(b, pair, f"{name}.norm")
        bias = _pair_bias(b, inner, model.pair_heads, f"{name}.bias")
        inner = inner if name == "starting" else _turned(b, inner, f"{name}.turn")
        inner = _gated_attention(b, inner, model.pair_heads, model.head_size, name, [bias])
        inner = inner if name == "starting" else _turned(b, inner, f"{name}.back")
        pair = _add(b, inner, pair, f"{name}.add")
    return msa, _transition(b, pair, model.transition, "pair_transition")


def _gated_attention(b: GraphBuilder, x: Tensor, heads: int, size: int, name: str, bias: Sequence[Tensor]) -> Tensor:
    """Attention along the second last axis, its result gated by a sigmoid before the output projection."""
    gate = pointwise(b, "sigmoid", f"{name}.gate.sigmoid", [linear(b, x, heads * size, f"{name}.gate", units=heads)],
                     flops=4.0, keeps="output")
    sizes = AttentionSizes(heads, size, bias=False, out_bias=True)
    return attention(b, x, sizes, name, score_bias=bias, gate=gate)


def _pair_bias(b: GraphBuilder, pair: Tensor, heads: int, name: str) -> Tensor:
    """One bias a head and pair: (batch, heads, residues, residues)."""
    flat = linear(b, pair, heads, name, bias=False, units=heads)
    batch, rows, columns, _ = pair.shape
    return copy(b, flat, (batch, heads, rows, columns), f"{name}.turn", "transpose")


def _turned(b: GraphBuilder, x: Tensor, name: str) -> Tensor:
    """Rows and columns exchanged."""
    batch, rows, columns, width = x.shape
    return copy(b, x, (batch, columns, rows, width), name, "transpose")


def _transition(b: GraphBuilder, x: Tensor, factor: int, name: str) -> Tensor:
    inner = linear(b, norm(b, x, f"{name}.norm"), factor * x.shape[-1], f"{name}.up")
    inner = linear(b, activation(b, inner, "relu", f"{name}.relu"), x.shape[-1], f"{name}.down")
    return _add(b, inner, x, f"{name}.add")


def _outer_product_mean(b: GraphBuilder, msa: Tensor, model: EvoformerModel) -> Tensor:
    """For every two residues the mean over the sequences of the products of their features (algorithm 10)."""
    batch, sequences, residues, _ = msa.shape
    inner = norm(b, msa, "outer.norm")
    left, right = (linear(b, inner, model.outer, f"outer.{side}") for side in ("left", "right"))
    y = b.tensor("outer.product", (batch, residues, residues, model.outer**2))
    flops = 2.0 * math.prod(y.shape) * sequences
    b.add("matmul", "outer.product", [left, right], [y], work=Passes(flops, input_flops=2 * flops),
          saved=Saved([left, right]),
          splits=[b.along("batch", 0, [left, right], [y]),
                  Split("rows", residues, {left.name: 2}, {y.name: 1}),
                  Split("sequences", sequences, {left.name: 1, right.name: 1}, {y.name: "partial"})])
    return linear(b, y, model.pair, "outer.out")


def _triangle_product(b: GraphBuilder, pair: Tensor, inner: int, name: str) -> Tensor:
    """The pair's update from the two other edges of every triangle (algorithms 11 and 12)."""
    x = norm(b, pair, f"{name}.norm")
    sides = []
    for side in ("left", "right"):
        gate = pointwise(b, "sigmoid", f"{name}.{side}.sigmoid", [linear(b, x, inner, f"{name}.{side}.gate")],
                         flops=4.0, keeps="output")
        sides.append(pointwise(b, "multiply", f"{name}.{side}", [linear(b, x, inner, f"{name}.{side}.project"), gate],
                               keeps="inputs"))
    y = b.tensor(f"{name}.product", (*pair.shape[:-1], inner))
    flops = 2.0 * math.prod(y.shape) * pair.shape[2]
    left, right = sides
    row = 1 if name == "outgoing" else 2  # outgoing edges sum over the columns of both, incoming over the rows
    b.add("matmul", f"{name}.product", sides, [y], work=Passes(flops, input_flops=2 * flops), saved=Saved(sides),
          splits=[b.along("batch", 0, sides, [y]), b.along("channels", 3, sides, [y]),
                  Split("rows", y.shape[1], {left.name: row}, {y.name: 1}),
                  Split("columns", y.shape[2], {right.name: row}, {y.name: 2})])
    out = linear(b, norm(b, y, f"{name}.center_norm"), pair.shape[-1], f"{name}.out")
    gate = pointwise(b, "sigmoid", f"{name}.gate.sigmoid", [linear(b, x, pair.shape[-1], f"{name}.gate")], flops=4.0,
                     keeps="output")
    return pointwise(b, "multiply", f"{name}.gated", [out, gate], keeps="inputs")


def _add(b: GraphBuilder, x: Tensor, residual: Tensor, name: str) -> Tensor:
    return pointwise(b, "add", name, [x, residual])
