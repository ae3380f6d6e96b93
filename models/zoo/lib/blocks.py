"""The blocks that the zoo's families are made of: linear layers, norms, attention, feed-forward parts, losses.

Each adds its operators to a :class:`~weft.models.zoo.lib.builder.Builder` and returns the tensor that goes on. They are
cut as finely as a framework's kernels are, and as the profiles in ``models/data/aceso`` are. Activations are (batch,
sequence, hidden) unless a block says otherwise. A multiplication and an addition count as two floating-point
operations.

What is kept for the backward is what PyTorch keeps: a linear layer its input, a softmax its output, dropout a mask of
one byte an element, GELU its input, ReLU its output, a norm its input and its statistics in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.models.graph.operators import Parameter, Split, Tensor, Work
from weft.models.zoo.lib.builder import Builder

__all__ = ["activation", "add", "attention", "copy", "cross_entropy", "embedding", "feed_forward", "linear", "norm",
           "pointwise", "transformer_layer"]


def linear(b: Builder, x: Tensor, out: int, name: str, *, bias: bool = True, weight: Parameter | None = None,
           units: int | None = None, input_units: int | None = None) -> Tensor:
    """``y = x w^T`` on the last axis. ``weight``: another layer's, to share it.

    ``units`` and ``input_units``: how many equal parts the output and the input can be cut into (default: every
    element; attention's projections are cut by heads). Cut by output, weights are divided and the output lies cut; cut
    by input, the output is terms to be added up, and the bias is held by every device.
    """
    width, tokens = x.shape[-1], math.prod(x.shape[:-1])
    y = b.tensor(name, (*x.shape[:-1], out))
    matrix = weight or b.parameter(f"{name}.weight", out, width)
    vector = (b.parameter(f"{name}.bias", out),) if bias else ()
    last = len(x.shape) - 1
    splits = [*_rows(b, x, y),
              Split("output", units or out, {}, {y.name: last}, frozenset(p.name for p in (matrix, *vector))),
              Split("input", input_units or width, {x.name: last}, {y.name: "partial"}, frozenset({matrix.name}))]
    b.add("linear", name, [x], [y], flops=2.0 * tokens * width * out, parameters=(matrix, *vector), keeps=[x],
          deferred=[x], splits=splits,
          # the input gradient needs the weights only, not the input
          input_grad=Work(2.0 * tokens * width * out, y.bytes + matrix.bytes, x.bytes))
    return y


def norm(b: Builder, x: Tensor, name: str, kind: str = "layer_norm", *, bias: bool = True) -> Tensor:
    """A layer norm or RMS norm over the last axis; its weight gradient rides along in the input-gradient pass."""
    if kind not in ("layer_norm", "rms_norm"):
        raise ValueError(f"norm is {kind!r}, it must be layer_norm or rms_norm")
    width = x.shape[-1]
    y = b.tensor(name, x.shape)
    count = 2 if kind == "layer_norm" else 1  # mean and inverse deviation, or the latter alone
    statistics = b.tensor(f"{name}.statistics", (*x.shape[:-1], count), "float32")
    vectors = [b.parameter(f"{name}.weight", width)]
    if kind == "layer_norm" and bias:
        vectors.append(b.parameter(f"{name}.bias", width))
    elements = math.prod(x.shape)
    b.add(kind, name, [x], [y], flops=5.0 * elements, input_flops=8.0 * elements, parameters=vectors,
          internal=[statistics], keeps=[x, statistics], splits=_rows(b, x, y),
          weight_grad=Work(2.0 * elements, 0, sum(p.bytes for p in vectors)))
    return y


def pointwise(b: Builder, kind: str, name: str, inputs: Sequence[Tensor], *, flops: float = 1.0,
              keeps: str = "", width: int | None = None) -> Tensor:
    """One output element from one of each input (``flops`` an element). ``keeps``: "inputs", "output" or nothing.

    ``width``: of the output's last axis where it differs from the inputs'.
    """
    shape = (*inputs[0].shape[:-1], width or inputs[0].shape[-1])
    y = b.tensor(name, shape)
    whole = width is None and all(tensor.shape == shape for tensor in inputs)
    splits = [b.along(f"axis{axis}" if axis > 1 else ("batch", "sequence")[axis], axis, inputs, [y])
              for axis in range(len(shape))] if whole else _rows(b, inputs[0], y)
    kept = {"inputs": list(inputs), "output": [y], "": []}[keeps]
    b.add(kind, name, inputs, [y], flops=flops * math.prod(shape), keeps=kept, splits=splits)
    return y


def add(b: Builder, x: Tensor, residual: Tensor, name: str) -> Tensor:
    """``residual + dropout(x)``; without dropout a plain addition."""
    if not b.dropout:
        return pointwise(b, "add", name, [x, residual])
    y = b.tensor(name, x.shape)
    mask = b.tensor(f"{name}.mask", x.shape, "bool")
    b.add("dropout_add", name, [x, residual], [y], flops=3.0 * math.prod(x.shape), internal=[mask], keeps=[mask],
          splits=[b.along(("batch", "sequence", "hidden")[axis], axis, [x, residual], [y])
                  for axis in range(min(3, len(x.shape)))])
    return y


def copy(b: Builder, x: Tensor, shape: Sequence[int], name: str, kind: str = "copy") -> Tensor:
    """The same elements moved into another ``shape`` (windows cut and joined, a permutation made contiguous)."""
    if math.prod(shape) != math.prod(x.shape):
        raise ValueError(f"{name}: {math.prod(x.shape)} elements do not fit the shape {tuple(shape)}")
    y = b.tensor(name, shape)
    b.add(kind, name, [x], [y])
    return y


def activation(b: Builder, x: Tensor, kind: str, name: str) -> Tensor:
    """``gelu``, ``relu``, or gated ``swiglu`` and ``geglu``, whose input holds gate and value side by side."""
    if kind == "relu":
        return pointwise(b, "relu", name, [x], keeps="output")
    if kind == "gelu":
        return pointwise(b, "gelu", name, [x], flops=10.0, keeps="inputs")
    if kind not in ("swiglu", "geglu"):
        raise ValueError(f"activation is {kind!r}, it must be gelu, relu, swiglu or geglu")
    half = x.shape[-1] // 2
    y = b.tensor(name, (*x.shape[:-1], half))
    last = len(x.shape) - 1
    b.add(kind, name, [x], [y], flops=10.0 * math.prod(y.shape), keeps=[x],
          splits=[*_rows(b, x, y), Split("hidden", half, {x.name: last}, {y.name: last})])
    return y


def embedding(b: Builder, ids: Tensor, entries: int, width: int, name: str, *, positions: int = 0,
              weight: Parameter | None = None, places: Parameter | None = None, dropout: bool = False) -> Tensor:
    """Rows of a table by number, with ``positions`` learned positions added; ``ids`` is (batch, sequence).

    ``weight`` and ``places``: another layer's tables, to share them.

    Cut by vocabulary every device looks up the rows it holds, and the terms are added up; the gradient of the table is
    dense, as frameworks make it.
    """
    table = weight or b.parameter(f"{name}.weight", entries, width)
    place = (places or b.parameter(f"{name}.positions", positions, width),) if positions or places else ()
    y = b.tensor(name, (*ids.shape, width))
    names = frozenset(p.name for p in (table, *place))
    mask = [b.tensor(f"{name}.mask", y.shape, "bool")] if dropout and b.dropout else []
    last = len(y.shape) - 1
    b.add("embedding", name, [ids], [y], parameters=(table, *place), internal=mask, keeps=[ids, *mask],
          deferred=[ids, *mask], splits=[*_rows(b, ids, y),
                                         Split("vocabulary", entries, {}, {y.name: "partial"}, frozenset({table.name})),
                                         Split("hidden", width, {}, {y.name: last}, names)],
          forward=Work(float(math.prod(y.shape)), ids.bytes + y.bytes, y.bytes),
          weight_grad=Work(float(math.prod(y.shape)), y.bytes + ids.bytes,
                           sum(p.bytes for p in (table, *place)) + y.bytes))
    return y


def cross_entropy(b: Builder, logits: Tensor, labels: Tensor, name: str = "loss") -> Tensor:
    """The loss of each token from fp16 logits, in fp32 and kernel by kernel as Megatron-LM's is.

    Conversion, maximum, difference, exponential, sum and quotient each pass over the fp32 copy; the softmax is kept.
    Cut by vocabulary every device has its terms of maximum, sum and the label's logit, three numbers a token.
    """
    elements, wide = math.prod(logits.shape), 4 * math.prod(logits.shape)
    y = b.tensor(name, logits.shape[:-1], "float32")
    probabilities = b.tensor(f"{name}.softmax", logits.shape, "float32")
    last = len(logits.shape) - 1
    b.add("cross_entropy", name, [logits, labels], [y], internal=[probabilities], keeps=[probabilities, labels],
          splits=[*_rows(b, logits, y, labels),
                  Split("vocabulary", logits.shape[-1], {logits.name: last}, {y.name: "partial"})],
          forward=Work(6.0 * elements, logits.bytes + 5 * wide, 4 * wide),
          input_grad=Work(3.0 * elements, 2 * wide + labels.bytes, wide + logits.bytes))
    return y


def attention(b: Builder, x: Tensor, heads: int, name: str = "attention", *, memory: Tensor | None = None,
              head_size: int | None = None, kv_heads: int | None = None, bias: bool = True,
              out_bias: bool | None = None, fused: bool = False, score_bias: Sequence[Tensor] = (),
              rotary: bool = False, gate: Tensor | None = None) -> Tensor:
    """Multi-head attention, from the projections to the output projection.

    ``memory``: what is attended to (default: ``x``).

    ``kv_heads`` < ``heads`` share keys and values (grouped queries). ``score_bias``: tensors added to the scores.
    ``gate``: multiplies the result before the output projection.
    ``fused`` computes scores, softmax and context in one kernel that keeps queries, keys, values, its output and one
    fp32 number a row (FlashAttention, Dao et al. 2022), and computes the scores again in its backward. There dropout's
    mask is drawn again, too.
    """
    width, queries = x.shape[-1], x.shape[-2]
    size, groups = head_size or width // heads, kv_heads or heads
    if memory is None:
        both = linear(b, x, (heads + 2 * groups) * size, f"{name}.qkv", bias=bias, units=groups)
        if rotary:
            both = pointwise(b, "rotary", f"{name}.rotary", [both], flops=3.0)
        sources, keys = [both], queries
    else:
        sources = [linear(b, x, heads * size, f"{name}.q", bias=bias, units=heads),
                   linear(b, memory, 2 * groups * size, f"{name}.kv", bias=bias, units=groups)]
        keys = memory.shape[-2]
    lead = x.shape[:-2]
    if fused and not score_bias:
        context = _fused(b, sources, (*lead, queries, heads * size), heads, groups, keys, name)
    else:
        context = _scored(b, sources, (*lead, queries, heads * size), heads, groups, keys, score_bias, name)
    if gate is not None:
        context = pointwise(b, "multiply", f"{name}.gated", [context, gate], keeps="inputs")
    return linear(b, context, width, f"{name}.dense", bias=bias if out_bias is None else out_bias, input_units=groups)


def _fused(b: Builder, sources: Sequence[Tensor], shape: tuple[int, ...], heads: int, groups: int, keys: int,
           name: str) -> Tensor:
    context = b.tensor(f"{name}.core", shape)
    rows = b.tensor(f"{name}.core.statistics", (*shape[:-2], heads, shape[-2]), "float32")
    flops = 4.0 * math.prod(shape) * keys
    b.add("attention", f"{name}.core", sources, [context], flops=flops, input_flops=2.5 * flops, internal=[rows],
          keeps=[*sources, context, rows],
          splits=_by_head({tensor: len(shape) - 1 for tensor in sources}, context, len(shape) - 1, groups, len(shape)))
    return context


def _scored(b: Builder, sources: Sequence[Tensor], shape: tuple[int, ...], heads: int, groups: int, keys: int,
            score_bias: Sequence[Tensor], name: str) -> Tensor:
    square, at, last = (*shape[:-2], heads, shape[-2], keys), len(shape) - 2, len(shape) - 1
    flops = 2.0 * math.prod(shape) * keys
    scores = b.tensor(f"{name}.score", square)
    b.add("matmul", f"{name}.score", sources, [scores], flops=flops, input_flops=2 * flops, keeps=sources,
          splits=_by_head({tensor: last for tensor in sources}, scores, at, groups, len(shape)))
    probabilities = b.tensor(f"{name}.softmax", square)
    added = {scores: at, **{tensor: len(tensor.shape) - 3 for tensor in score_bias}}
    b.add("softmax", f"{name}.softmax", [scores, *score_bias], [probabilities], flops=5.0 * math.prod(square),
          keeps=[probabilities], splits=_by_head(added, probabilities, at, heads, len(shape)))
    if b.dropout:
        dropped = b.tensor(f"{name}.dropout", square)
        mask = b.tensor(f"{name}.dropout.mask", square, "bool")
        b.add("dropout", f"{name}.dropout", [probabilities], [dropped], flops=2.0 * math.prod(square), internal=[mask],
              keeps=[mask], splits=_by_head({probabilities: at}, dropped, at, heads, len(shape)))
        probabilities = dropped
    context = b.tensor(f"{name}.context", shape)
    values = sources[-1]
    b.add("matmul", f"{name}.context", [probabilities, values], [context], flops=flops, input_flops=2 * flops,
          keeps=[probabilities, values],
          splits=_by_head({probabilities: at, values: last}, context, last, groups, len(shape)))
    return context


def _by_head(inputs: Mapping[Tensor, int], out: Tensor, axis: int, groups: int, axes: int) -> list[Split]:
    """Cuts by head (the axis of each input, and of ``out``) and along the axes before the sequence.

    An input without those axes, such as one bias for the whole batch, stays whole there.
    """
    lead = [Split(("batch", "rows")[i], out.shape[i],
                  {t.name: i for t in inputs if len(t.shape) > 3 - (axes - 3) or t.shape[0] == out.shape[0]
                   if i < len(t.shape) and t.shape[i] == out.shape[i]}, {out.name: i}) for i in range(axes - 2)]
    return [*lead, Split("heads", groups, {t.name: at for t, at in inputs.items()}, {out.name: axis})]


def feed_forward(b: Builder, x: Tensor, hidden: int, kind: str = "gelu", name: str = "mlp", *,
                 bias: bool = True) -> Tensor:
    """Two linear layers with an activation between; gated kinds have gate and value in the first."""
    inner = 2 * hidden if kind in ("swiglu", "geglu") else hidden
    up = linear(b, x, inner, f"{name}.up", bias=bias, units=hidden)
    return linear(b, activation(b, up, kind, f"{name}.{kind}"), x.shape[-1], f"{name}.down", bias=bias)


def transformer_layer(b: Builder, x: Tensor, heads: int, hidden: int, *, kind: str = "gelu", norms: str = "layer_norm",
                      bias: bool = True, memory: Tensor | None = None, head_size: int | None = None,
                      kv_heads: int | None = None, attention_bias: bool | None = None, out_bias: bool | None = None,
                      fused: bool = False, score_bias: Sequence[Tensor] = (), rotary: bool = False) -> Tensor:
    """A pre-norm layer: attention, attention to ``memory`` where there is one, feed-forward; each with its residual."""
    projections = bias if attention_bias is None else attention_bias
    inner = norm(b, x, "norm1", norms, bias=bias)
    inner = attention(b, inner, heads, head_size=head_size, kv_heads=kv_heads, bias=projections, out_bias=out_bias,
                      fused=fused, score_bias=score_bias, rotary=rotary)
    x = add(b, inner, x, "add1")
    if memory is not None:
        inner = norm(b, x, "norm_cross", norms, bias=bias)
        inner = attention(b, inner, heads, "cross", memory=memory, head_size=head_size, bias=projections, fused=fused)
        x = add(b, inner, x, "add_cross")
    inner = feed_forward(b, norm(b, x, "norm2", norms, bias=bias), hidden, kind, bias=bias)
    return add(b, inner, x, "add2")


def _rows(b: Builder, x: Tensor, y: Tensor, *others: Tensor) -> list[Split]:
    """Cuts along the axes that go through unchanged: batch, and sequence where there is one."""
    named = ("batch", "sequence")
    count = min(2, len(y.shape) - 1 or 1, len(x.shape))
    return [b.along(named[axis], axis, [x, *others], [y]) for axis in range(count)
            if x.shape[axis] == y.shape[axis] and all(t.shape[axis] == y.shape[axis] for t in others)]
