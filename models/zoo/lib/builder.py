"""Assembly of an operator graph, one operator after another.

Properties common to all operators are derived here, so that a block specifies only its own: names (a layer's
operators, tensors and parameters carry the layer's name in front), whether there is a backward at all, and the bytes
that each pass moves:

* forward: reads its inputs and parameters, writes its outputs and what it keeps for itself;
* input gradient: reads the gradients of its outputs, what it kept and its parameters, writes its inputs' gradients;
* weight gradient: reads the gradients of its outputs and what it kept for it, writes its parameters' gradients.

Blocks that move more (a loss in several kernels) specify it themselves.

The building blocks of the zoo's families: linear layers, norms, activations, feed-forward parts, losses.

Each adds its operators to a :class:`~weft.models.zoo.lib.builder.GraphBuilder` and returns its output tensor.
They are cut as finely as a framework's kernels are, and as the profiles in ``models/data/aceso`` are. Activations are
(batch, sequence, hidden) unless a block says otherwise. A multiplication and an addition count as two floating-point
operations. Kept tensors are those that PyTorch keeps: a linear layer its input, a softmax its output, dropout
a mask of one byte an element, GELU its input, ReLU its output, a norm its input and its statistics in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from weft.models.graph.operators import Layout, Operator, OperatorGraph, Parameter, Split, Tensor, Work

#: Bytes of one element.
DTYPES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1}


@dataclass(frozen=True, slots=True)
class Passes:
    """The work of an operator's passes.

    ``flops``: floating-point operations of the forward, and of each gradient unless ``input_flops`` says otherwise for
    the input's. A :class:`Work` given for a pass replaces the derived one.
    """

    flops: float = 0.0
    input_flops: float | None = None
    forward: Work | None = None
    input_grad: Work | None = None
    weight_grad: Work | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """Tensors beside an operator's inputs and outputs, and those of all of them that are kept.

    ``keeps``: for its backward. ``deferred``: of these, until its weight gradient (``None``: that runs in the
    input-gradient pass). ``internal``: tensors that it makes for itself; those not kept are its workspace.
    """

    keeps: Sequence[Tensor] = ()
    deferred: Sequence[Tensor] | None = None
    internal: Sequence[Tensor] = ()


_NO_WORK, _NOTHING = Passes(), Saved()


class GraphBuilder:
    """A graph under construction.

    ``dtype``: the type of activations and parameters. Without ``training`` nothing is kept and nothing has a backward.
    ``dropout`` off omits dropout operators, as in inference.
    """

    def __init__(self, name: str, *, dtype: str = "float16", training: bool = True, dropout: bool = True) -> None:
        self.name = name
        self.dtype = dtype
        self.training = training
        self.dropout = dropout and training
        self._operators: list[Operator] = []
        self._inputs: list[Tensor] = []
        self._constant: set[str] = set()  # tensors without a gradient
        self._layer = ""
        self._parameter_scope: str | None = None
        self._grad = training

    # -- names ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Operators made inside belong to layer ``name``."""
        before, self._layer = self._layer, name
        try:
            yield
        finally:
            self._layer = before

    @contextmanager
    def forward_only(self, scope: str | None = None) -> Iterator[None]:
        """Operators made inside keep nothing and have no backward; nor have operators that read only their outputs.

        Their parameters are named as those of layer ``scope`` (default: of their own layer), to be shared with it.
        """
        before = self._grad, self._parameter_scope
        self._grad, self._parameter_scope = False, scope
        try:
            yield
        finally:
            self._grad, self._parameter_scope = before

    def _named(self, name: str) -> str:
        return f"{self._layer}.{name}" if self._layer else name

    # -- tensors -------------------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        """An external tensor; it has no gradient."""
        made = _tensor(name, shape, dtype or self.dtype)
        self._inputs.append(made)
        self._constant.add(name)
        return made

    def tensor(self, name: str, shape: Sequence[int], dtype: str | None = None, base: Tensor | None = None) -> Tensor:
        """A tensor of the current layer; with ``base`` a view of that one."""
        made = _tensor(self._named(name), shape, dtype or self.dtype)
        return made if base is None else replace(made, base=base.name)

    def parameter(self, name: str, *shape: int, dtype: str | None = None) -> Parameter:
        """A trained tensor of the current layer."""
        count = math.prod(shape)
        scope = self._parameter_scope if self._parameter_scope is not None else self._layer
        return Parameter(f"{scope}.{name}" if scope else name, count, count * DTYPES[dtype or self.dtype], tuple(shape))

    # -- operators -----------------------------------------------------------------------------------------------------

    def add(self, kind: str, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *,
            work: Passes = _NO_WORK, parameters: Sequence[Parameter] = (), saved: Saved = _NOTHING,
            splits: Iterable[Split] = ()) -> Operator:
        """One operator. Its outputs have a gradient if an input or a parameter has one."""
        needs_input_grad = [t for t in inputs if t.name not in self._constant and _is_float(t)]
        backward = self._grad and bool(needs_input_grad or parameters)
        if not backward:
            self._constant.update(tensor.name for tensor in outputs)
        internal, keeps, deferred = saved.internal, saved.keeps, saved.deferred
        read, written, kept = _bytes(inputs), _bytes(outputs), _bytes(keeps)
        weights = sum(parameter.bytes for parameter in parameters)
        grads = _bytes(t for t in outputs if _is_float(t))
        held = tuple(dict.fromkeys(tensor.name for tensor in keeps)) if backward else ()
        working = 0 if backward else _bytes(internal)
        operator = Operator(
            name=self._named(name), kind=kind, layer=self._layer,
            forward=work.forward or Work(work.flops, read + weights, written + _bytes(internal)),
            inputs=tuple(dict.fromkeys(tensor.name for tensor in inputs)), outputs=tuple(outputs),
            input_grad=None if not (backward and needs_input_grad) else work.input_grad or Work(
                work.flops if work.input_flops is None else work.input_flops, grads + kept + weights,
                _bytes(needs_input_grad)),
            weight_grad=None if not (backward and parameters) else work.weight_grad or Work(
                work.flops, grads + _bytes(deferred or ()), weights),
            parameters=tuple(parameters), internal=tuple(internal) if backward else (), keeps=held,
            deferred=tuple(t.name for t in deferred) if backward and parameters and deferred is not None else None,
            workspace=working, splits=tuple(split for split in splits if split.size > 1))
        self._operators.append(operator)
        return operator

    def graph(self, *outputs: Tensor) -> OperatorGraph:
        """The finished graph; ``outputs`` leave the model."""
        return OperatorGraph(self.name, tuple(self._operators), tuple(self._inputs),
                             tuple(tensor.name for tensor in outputs))

    # -- splits --------------------------------------------------------------------------------------------------------

    def along(self, dimension: str, axis: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor],
              parameters: Sequence[Parameter] = ()) -> Split:
        """Everything cut along the same ``axis``, as batch and sequence are."""
        return Split(dimension, outputs[0].shape[axis], _laid(inputs, axis), _laid(outputs, axis),
                     frozenset(parameter.name for parameter in parameters))


def _tensor(name: str, shape: Sequence[int], dtype: str) -> Tensor:
    return Tensor(name, math.prod(shape) * DTYPES[dtype], tuple(shape), dtype)


def _is_float(tensor: Tensor) -> bool:
    return "float" in tensor.dtype


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({tensor.name: tensor.bytes for tensor in tensors}.values())


def _laid(tensors: Sequence[Tensor], layout: Layout) -> dict[str, Layout]:
    return {tensor.name: layout for tensor in tensors}


def linear(b: GraphBuilder, x: Tensor, out: int, name: str, *, bias: bool | int = True, weight: Parameter | None = None,
           units: int | None = None, input_units: int | None = None) -> Tensor:
    """``y = x w^T`` on the last axis. ``weight``: another layer's, to share it. ``bias``: whether outputs have one, or
    how many of them.

    ``units`` and ``input_units``: how many equal parts the output and the input can be cut into (default: every
    element; attention's projections are cut by heads). Cut by output, weights are divided and the output lies cut; cut
    by input, the output is terms to be added up, and the bias is held by every device.
    """
    width, tokens = x.shape[-1], math.prod(x.shape[:-1])
    y = b.tensor(name, (*x.shape[:-1], out))
    matrix = weight or b.parameter(f"{name}.weight", out, width)
    vector = (b.parameter(f"{name}.bias", out if bias is True else bias),) if bias else ()
    last = len(x.shape) - 1
    splits = [*along_rows(b, x, y),
              Split("output", units or out, {}, {y.name: last}, frozenset(p.name for p in (matrix, *vector))),
              Split("input", input_units or width, {x.name: last}, {y.name: "partial"}, frozenset({matrix.name}))]
    b.add("linear", name, [x], [y],
          work=Passes(2.0 * tokens * width * out,  # the input gradient needs the weights only, not the input
                      input_grad=Work(2.0 * tokens * width * out, y.bytes + matrix.bytes, x.bytes)),
          parameters=(matrix, *vector), saved=Saved([x], deferred=[x]), splits=splits)
    return y


def norm(b: GraphBuilder, x: Tensor, name: str, kind: str = "layer_norm", *, bias: bool = True) -> Tensor:
    """A layer norm or RMS norm over the last axis, or a "plain" layer norm, which has no parameters; the weight
    gradient rides along in the input-gradient pass."""
    if kind not in ("layer_norm", "rms_norm", "plain"):
        raise ValueError(f"norm is {kind!r}, it must be layer_norm, rms_norm or plain")
    width = x.shape[-1]
    y = b.tensor(name, x.shape)
    count = 1 if kind == "rms_norm" else 2  # mean and inverse deviation, or the latter alone
    statistics = b.tensor(f"{name}.statistics", (*x.shape[:-1], count), "float32")
    vectors = [] if kind == "plain" else [b.parameter(f"{name}.weight", width)]
    if kind == "layer_norm" and bias:
        vectors.append(b.parameter(f"{name}.bias", width))
    elements = math.prod(x.shape)
    b.add("rms_norm" if kind == "rms_norm" else "layer_norm", name, [x], [y],
          work=Passes(5.0 * elements, input_flops=8.0 * elements,
                      weight_grad=Work(2.0 * elements, 0, sum(p.bytes for p in vectors))), parameters=vectors,
          saved=Saved([x, statistics], internal=[statistics]), splits=along_rows(b, x, y))
    return y


def pointwise(b: GraphBuilder, kind: str, name: str, inputs: Sequence[Tensor], *, flops: float = 1.0,
              keeps: str = "", width: int | None = None) -> Tensor:
    """One output element from one of each input (``flops`` an element). ``keeps``: "inputs", "output" or nothing.

    ``width``: of the output's last axis where it differs from the inputs'.
    """
    shape = (*inputs[0].shape[:-1], width or inputs[0].shape[-1])
    y = b.tensor(name, shape)
    whole = width is None and all(tensor.shape == shape for tensor in inputs)
    splits = [b.along(f"axis{axis}" if axis > 1 else ("batch", "sequence")[axis], axis, inputs, [y])
              for axis in range(len(shape))] if whole else along_rows(b, inputs[0], y)
    kept = {"inputs": list(inputs), "output": [y], "": []}[keeps]
    b.add(kind, name, inputs, [y], work=Passes(flops * math.prod(shape)), saved=Saved(kept), splits=splits)
    return y


def add(b: GraphBuilder, x: Tensor, residual: Tensor, name: str) -> Tensor:
    """``residual + dropout(x)``; without dropout a plain addition."""
    if not b.dropout:
        return pointwise(b, "add", name, [x, residual])
    y = b.tensor(name, x.shape)
    mask = b.tensor(f"{name}.mask", x.shape, "bool")
    b.add("dropout_add", name, [x, residual], [y], work=Passes(3.0 * math.prod(x.shape)),
          saved=Saved([mask], internal=[mask]),
          splits=[b.along(("batch", "sequence", "hidden")[axis], axis, [x, residual], [y])
                  for axis in range(min(3, len(x.shape)))])
    return y


def copy(b: GraphBuilder, x: Tensor, shape: Sequence[int], name: str, kind: str = "copy") -> Tensor:
    """The same elements moved into another ``shape`` (windows cut and joined, a permutation made contiguous)."""
    if math.prod(shape) != math.prod(x.shape):
        raise ValueError(f"{name}: {math.prod(x.shape)} elements do not fit the shape {tuple(shape)}")
    y = b.tensor(name, shape)
    b.add(kind, name, [x], [y])
    return y


def concatenation(b: GraphBuilder, parts: Sequence[Tensor], axis: int, name: str, *, extra: int = 0,
                  parameters: Sequence[Parameter] = ()) -> Tensor:
    """``parts`` one behind the other along ``axis``, with ``extra`` learned entries in front."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts) + extra
    y = b.tensor(name, shape)
    b.add("concat", name, parts, [y], parameters=parameters,
          splits=[
                 b.along(f"axis{i}" if i else "batch", i, parts, [y]) for i in range(len(shape)) if i != axis])
    return y


def activation(b: GraphBuilder, x: Tensor, kind: str, name: str) -> Tensor:
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
    b.add(kind, name, [x], [y], work=Passes(10.0 * math.prod(y.shape)), saved=Saved([x]),
          splits=[*along_rows(b, x, y), Split("hidden", half, {x.name: last}, {y.name: last})])
    return y


def cross_entropy(b: GraphBuilder, logits: Tensor, labels: Tensor, name: str = "loss") -> Tensor:
    """The loss of each token from fp16 logits, in fp32 and kernel by kernel as Megatron-LM's is.

    Conversion, maximum, difference, exponential, sum and quotient each pass over the fp32 copy; the softmax is kept.
    Cut by vocabulary every device has its terms of maximum, sum and the label's logit, three numbers a token.
    """
    elements, wide = math.prod(logits.shape), 4 * math.prod(logits.shape)
    y = b.tensor(name, logits.shape[:-1], "float32")
    probabilities = b.tensor(f"{name}.softmax", logits.shape, "float32")
    last = len(logits.shape) - 1
    b.add("cross_entropy", name, [logits, labels], [y],
          work=Passes(forward=Work(6.0 * elements, logits.bytes + 5 * wide, 4 * wide),
                      input_grad=Work(3.0 * elements, 2 * wide + labels.bytes, wide + logits.bytes)),
          saved=Saved([probabilities, labels], internal=[probabilities]),
          splits=[*along_rows(b, logits, y, labels),
                  Split("vocabulary", logits.shape[-1], {logits.name: last}, {y.name: "partial"})])
    return y


def feed_forward(b: GraphBuilder, x: Tensor, hidden: int, kind: str = "gelu", name: str = "mlp", *,
                 bias: bool = True) -> Tensor:
    """Two linear layers with an activation between; gated kinds have gate and value in the first."""
    inner = 2 * hidden if kind in ("swiglu", "geglu") else hidden
    up = linear(b, x, inner, f"{name}.up", bias=bias, units=hidden)
    return linear(b, activation(b, up, kind, f"{name}.{kind}"), x.shape[-1], f"{name}.down", bias=bias)


def dense_layers(b: GraphBuilder, x: Tensor, widths: Sequence[int], *, last: str = "relu") -> Tensor:
    """Linear layers ``dense0`` ... of these ``widths``, a ReLU behind each, behind the last only if it is "relu"."""
    for i, width in enumerate(widths):
        x = linear(b, x, width, f"dense{i}")
        if i + 1 < len(widths) or last == "relu":
            x = activation(b, x, "relu", f"relu{i}")
    return x


def along_rows(b: GraphBuilder, x: Tensor, y: Tensor, *others: Tensor) -> list[Split]:
    """The splits along the axes that go through unchanged: batch, and sequence where there is one."""
    named = ("batch", "sequence")
    count = min(2, len(y.shape) - 1 or 1, len(x.shape))
    return [b.along(named[axis], axis, [x, *others], [y]) for axis in range(count)
            if x.shape[axis] == y.shape[axis] and all(t.shape[axis] == y.shape[axis] for t in others)]
