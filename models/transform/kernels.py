"""What operators compute, in numpy: exact references for plans, and what their gradients read.

A kernel computes a part of an operator as it computes the whole: it sees the arrays of its part, the sizes of the names
in it and in the whole, and where the part begins. :func:`operator` registers a user's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.models.transform.annotation import Annotation, Dimensions, PlanError, annotation

__all__ = ["KERNELS", "Array", "Call", "Gradient", "Kernel", "forget", "kernel", "operator", "own_annotation"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One part: its ``annotation``, the ``sizes`` of the names in it and in the ``whole`` operator, and the first index
    of each name that is cut (``starts``)."""

    annotation: Annotation
    sizes: Mapping[str, int]
    whole: Mapping[str, int]
    starts: Mapping[str, int]
    attributes: Mapping[str, Any]

    def flat(self, array: Array, tensor: Dimensions) -> Array:
        """One axis a name."""
        return array.reshape([self.sizes[name] for axis in tensor for name in axis])

    def grouped(self, array: Array, tensor: Dimensions) -> Array:
        """One axis a dimension."""
        return array.reshape(Annotation.shape(tensor, self.sizes))

    def axes(self, names: Sequence[str], tensor: int = 0) -> tuple[int, ...]:
        """Which axes of an input the names are, where each is a dimension of its own."""
        return tuple(i for i, axis in enumerate(self.annotation.inputs[tensor]) if set(axis) & set(names))


@dataclass(frozen=True)
class Gradient:
    """How an input's gradient is computed: the kernel, and what it reads beside the output's gradient: ``i`` and a
    number for an input, ``o0`` for the output."""

    kind: str
    reads: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """``run`` computes a part; ``gradient`` says how an input's gradient comes about (``None``: it has none)."""

    run: Callable[[Sequence[Array], Call], tuple[Array, ...]]
    gradient: Callable[[int, int, Mapping[str, Any]], Gradient | None] = lambda i, count, attributes: None


KERNELS: dict[str, Kernel] = {}
_OWN: dict[str, Annotation] = {}


def forget(kind: str) -> None:
    """Take back a user's own operator."""
    _OWN.pop(kind, None)
    for known in [name for name in KERNELS if name == kind or name.startswith(f"{kind}_grad")]:
        del KERNELS[known]


def kernel(kind: str) -> Kernel:
    """The kernel of a kind. Raises :class:`~weft.models.transform.annotation.PlanError` for an unknown one."""
    if kind not in KERNELS:
        raise PlanError(f"there is no kernel {kind!r}: register a function of that name with weft.plans.operator")
    return KERNELS[kind]


def operator(how: str, *, gradients: Sequence[Callable[..., Array] | None] = ()) -> Callable[
        [Callable[..., Any]], Callable[..., Any]]:
    """Register a function of numpy arrays as an operator that splits as the annotation ``how`` says.

    Its name is its kind. ``gradients``: for each input a function of the output's gradient and all inputs, or ``None``.
    Raises :class:`~weft.models.transform.annotation.PlanError` for an annotation that means nothing, or a known name.
    """
    found = annotation(how)

    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        kind = function.__name__
        if kind in KERNELS:
            raise PlanError(f"there is a kernel {kind!r} already")
        count = len(found.inputs)

        def run(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
            made = function(*arrays, **call.attributes)
            return made if isinstance(made, tuple) else (made,)

        def backward(back: Callable[..., Array]) -> Kernel:
            return Kernel(lambda arrays, call: (back(*arrays, **call.attributes),))

        for i, back in enumerate(gradients):
            if back is not None:
                KERNELS[f"{kind}_grad{i}"] = backward(back)
        KERNELS[kind] = Kernel(run, lambda i, _, attributes: Gradient(
            f"{kind}_grad{i}", tuple(f"i{n}" for n in range(count)), attributes)
            if i < len(gradients) and gradients[i] is not None else None)
        _OWN[kind] = found
        return function

    return registered


def own_annotation(kind: str) -> Annotation | None:
    """The annotation of a user's own operator."""
    return _OWN.get(kind)


# -- sums of products: matmuls, projections, views, sums, products ---------------------------------------------------


def _einsum(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    letters = {name: chr(97 + i) for i, name in enumerate(call.annotation.names)}
    out = call.annotation.outputs[0]
    given = {name for tensor in call.annotation.inputs for axis in tensor for name in axis}
    wanted = [name for axis in out for name in axis]
    left = ",".join("".join(letters[name] for axis in tensor for name in axis) for tensor in call.annotation.inputs)
    right = "".join(letters[name] for name in wanted if name in given)
    flat = [call.flat(array, tensor) for array, tensor in zip(arrays, call.annotation.inputs, strict=True)]
    made = np.einsum(f"{left}->{right}", *flat, optimize=len(flat) > 1) * call.attributes.get("scale", 1.0)
    made = made.reshape([call.sizes[name] if name in given else 1 for name in wanted])
    return (call.grouped(np.broadcast_to(made, [call.sizes[name] for name in wanted]), out),)


def _einsum_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    return Gradient("einsum", tuple(f"i{n}" for n in range(count) if n != i), attributes)


def _add(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    names = [name for axis in call.annotation.outputs[0] for name in axis]
    total: Any = 0.0
    for i, (array, tensor) in enumerate(zip(arrays, call.annotation.inputs, strict=True)):
        own = [name for axis in tensor for name in axis]
        order = sorted(range(len(own)), key=lambda n: names.index(own[n]))
        flat = call.flat(array, tensor).transpose(order)
        total = total + flat.reshape([call.sizes[name] if name in own else 1 for name in names]) * _sign(call, i)
    total = total + call.attributes.get("constant", 0.0)
    return (call.grouped(np.broadcast_to(total, [call.sizes[name] for name in names]),
                         call.annotation.outputs[0]),)


def _sign(call: Call, i: int) -> float:
    signs: Sequence[float] = call.attributes.get("signs", ())
    return signs[i] if signs else 1.0


def _add_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    return Gradient("einsum", (), {"scale": attributes["signs"][i]} if attributes.get("signs") else {})


# -- pointwise -------------------------------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _gelu_tanh(x: Array) -> tuple[Array, Array]:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    tanh = np.tanh(inner)
    slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + tanh), slope


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _cumulative(x: Array) -> Array:
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2)))) if x.size else x


#: Functions of one element and their derivatives.
_UNARY: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "identity": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(float)),
    "gelu": (lambda x: x * _cumulative(x), lambda x: _cumulative(x) + x * _density(x)),
    "gelu_tanh": (lambda x: _gelu_tanh(x)[0], lambda x: _gelu_tanh(x)[1]),
    "silu": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "exp": (np.exp, np.exp),
    "square": (lambda x: x * x, lambda x: 2 * x),
    "sqrt": (np.sqrt, lambda x: 0.5 / np.sqrt(x)),
    "log": (np.log, lambda x: 1 / x),
    "reciprocal": (lambda x: 1 / x, lambda x: -1 / (x * x)),
}


def _register_unary(kind: str, value: Callable[[Array], Array], slope: Callable[[Array], Array]) -> None:
    KERNELS[kind] = Kernel(lambda arrays, call: (value(arrays[0]),),
                           lambda i, count, attributes: Gradient(f"{kind}_grad", ("i0",)))
    KERNELS[f"{kind}_grad"] = Kernel(lambda arrays, call: (arrays[0] * slope(arrays[1]),))


# -- views that cut and join -----------------------------------------------------------------------------------------


def _reshape(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    return (call.grouped(arrays[0], call.annotation.outputs[0]),)


def _take(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """Elements ``start`` to ``stop`` along ``axis``, every ``step``-th."""
    start, stop, step = call.attributes["span"]
    return (np.take(arrays[0], range(start, stop, step), axis=call.attributes["axis"]),)


def _take_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    start, stop, step = call.attributes["span"]
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    at: list[slice] = [slice(None)] * made.ndim
    at[call.attributes["axis"]] = slice(start, stop, step)
    made[tuple(at)] = arrays[0]
    return (made,)


def _join(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    return (np.concatenate(list(arrays), call.attributes["axis"]),)


def _join_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    low = sum(attributes["lengths"][:i])
    return Gradient("take", (), {"axis": attributes["axis"], "span": (low, low + attributes["lengths"][i], 1)})


# -- softmax, attention, gates, losses -------------------------------------------------------------------------------


def _softmax_over(x: Array, axes: tuple[int, ...]) -> Array:
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return np.asarray(e / e.sum(axis=axes, keepdims=True))


def _softmax(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    x = arrays[0]
    if call.attributes.get("causal"):
        query, key = call.attributes["causal"]
        rows, columns = call.axes([query])[0], call.axes([key])[0]
        x = np.where(_hidden(call, query, key, x.ndim, rows, columns), -np.inf, x)
    return (_softmax_over(x, call.axes([call.attributes["over"]])),)


def _hidden(call: Call, query: str, key: str, dimensions: int, rows: int, columns: int) -> Array:
    at = [1] * dimensions
    at[rows] = -1
    mine = (np.arange(call.sizes[query]) + call.starts.get(query, 0)).reshape(at)
    at = [1] * dimensions
    at[columns] = -1
    return np.asarray((np.arange(call.sizes[key]) + call.starts.get(key, 0)).reshape(at) > mine)


def _softmax_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, y = arrays
    axes = call.axes([call.attributes["over"]])
    return (y * (gradient - (gradient * y).sum(axis=axes, keepdims=True)),)


def _log_softmax(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    axes = call.axes([call.attributes["over"]])
    x = arrays[0] - arrays[0].max(axis=axes, keepdims=True)
    return (x - np.log(np.exp(x).sum(axis=axes, keepdims=True)),)


def _log_softmax_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, y = arrays
    return (gradient - np.exp(y) * gradient.sum(axis=call.axes([call.attributes["over"]]), keepdims=True),)


def _attended(q: Array, k: Array, call: Call, at: int) -> Array:
    """Weights of keys; ``at``: which of the annotation's inputs the queries are."""
    weights = np.einsum("bhsd,bhtd->bhst", q, k) * call.attributes.get("scale", 1 / math.sqrt(q.shape[-1]))
    if call.attributes.get("causal"):
        query, key = (call.annotation.inputs[at + i][2][0] for i in (0, 1))
        weights = np.where(_hidden(call, query, key, 4, 2, 3), -np.inf, weights)
    return _softmax_over(weights, (3,))


def _attention(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    q, k, v = arrays
    return (np.einsum("bhst,bhte->bhse", _attended(q, k, call, 0), v),)


def _attention_grad(which: int) -> Callable[[Sequence[Array], Call], tuple[Array, ...]]:
    def run(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
        gradient, q, k, v = arrays
        weights = _attended(q, k, call, 1)
        if which == 2:
            return (np.einsum("bhst,bhse->bhte", weights, gradient),)
        back = np.einsum("bhse,bhte->bhst", gradient, v)
        back = weights * (back - (back * weights).sum(axis=3, keepdims=True))
        back = back * call.attributes.get("scale", 1 / math.sqrt(q.shape[-1]))
        return (np.einsum("bhst,bhtd->bhsd", back, k) if which == 0 else np.einsum("bhst,bhsd->bhtd", back, q),)

    return run


def _top_k(x: Array, k: int) -> Array:
    """Weights of the k largest along the last axis, the others 0."""
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    kept = np.zeros(x.shape, bool)
    np.put_along_axis(kept, order, True, axis=-1)
    return _softmax_over(np.where(kept, x, -np.inf), (x.ndim - 1,))


def _top_k_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    y = _top_k(arrays[1], call.attributes["k"])
    return (y * (arrays[0] - (arrays[0] * y).sum(axis=-1, keepdims=True)),)


def _cross_entropy(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    logits, targets = arrays[0], arrays[1].astype(int)
    if targets.size and not 0 <= targets.min() <= targets.max() < logits.shape[-1]:
        raise PlanError(f"cross_entropy: a target is {targets.min() if targets.min() < 0 else targets.max()}, it must "
                        f"be 0 to {logits.shape[-1] - 1}: targets that are ignored are not known here")
    high = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - high).sum(axis=-1)) + high[..., 0]
    return (total - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0],)


def _cross_entropy_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, logits, targets = arrays
    back = _softmax_over(logits, (logits.ndim - 1,))
    at = targets.astype(int)[..., None]
    np.put_along_axis(back, at, np.take_along_axis(back, at, -1) - 1, axis=-1)
    return (back * gradient[..., None],)


# -- norms -----------------------------------------------------------------------------------------------------------


def _standardized(x: Array, call: Call) -> tuple[Array, Array]:
    """Over the last axis: what a norm multiplies by its weight, and by how much ``x`` was scaled."""
    centred = x - x.mean(axis=-1, keepdims=True) if call.attributes.get("centred", True) else x
    scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + call.attributes.get("eps", 1e-5))
    return centred * scale, scale


def _norm(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    y = _standardized(arrays[0], call)[0]
    for i, array in enumerate(arrays[1:]):
        y = y * array if i == 0 else y + array
    return (y,)


def _norm_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    if i == 0:
        return Gradient("norm_grad_input", ("i0", "i1") if count > 1 else ("i0",), attributes)
    return Gradient("norm_grad_weight", ("i0",), attributes) if i == 1 else Gradient("einsum")


def _norm_grad_input(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, x = arrays[:2]
    y, scale = _standardized(x, call)
    g = gradient * arrays[2] if len(arrays) > 2 else gradient
    centred = g - g.mean(axis=-1, keepdims=True) if call.attributes.get("centred", True) else g
    return (scale * (centred - y * (g * y).mean(axis=-1, keepdims=True)),)


def _norm_grad_weight(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, x = arrays
    return ((gradient * _standardized(x, call)[0]).reshape(-1, x.shape[-1]).sum(axis=0),)


# -- tables and convolutions -----------------------------------------------------------------------------------------


def _rows(ids: Array, name: str, call: Call) -> tuple[Array, Array]:
    """Which rows of this part are looked up, and which of the indices are of it."""
    own = ids.astype(int) - call.starts.get(name, 0)
    here = (own >= 0) & (own < call.sizes[name])
    return np.where(here, own, 0), here


def _embedding(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    rows, here = _rows(arrays[1], call.annotation.inputs[0][0][0], call)
    return (arrays[0][rows] * here[..., None],)


def _embedding_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, ids = arrays
    rows, here = _rows(ids, call.annotation.outputs[0][0][0], call)
    here = here & (ids != call.attributes.get("padding", -1))
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    np.add.at(made, rows, gradient * here[..., None])
    return (made,)


def _windows(x: Array, call: Call, high: int, wide: int) -> Array:
    """``x`` of batch, channel, row, column as [batch, channel, kernel row, kernel column, row, column]."""
    (up, left), (down, right) = call.attributes.get("padding", (0, 0)), call.attributes.get("stride", (1, 1))
    padded = np.pad(x, ((0, 0), (0, 0), (up, up), (left, left)))
    rows = (padded.shape[2] - high) // down + 1
    columns = (padded.shape[3] - wide) // right + 1
    found = np.empty((*x.shape[:2], high, wide, rows, columns))
    for i in range(high):
        for j in range(wide):
            found[:, :, i, j] = padded[:, :, i:i + rows * down:down, j:j + columns * right:right]
    return found


def _convolution(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    x, weight = arrays
    return (np.einsum("ncpqyz,ocpq->noyz", _windows(x, call, *weight.shape[2:]), weight, optimize=True),)


def _convolution_grad_weight(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, x = arrays
    high, wide = Annotation.shape(call.annotation.outputs[0], call.sizes)[2:]
    return (np.einsum("ncpqyz,noyz->ocpq", _windows(x, call, high, wide), gradient, optimize=True),)


def _convolution_grad_input(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, weight = arrays
    n, c, rows, columns = Annotation.shape(call.annotation.outputs[0], call.sizes)
    (up, left), (down, right) = call.attributes.get("padding", (0, 0)), call.attributes.get("stride", (1, 1))
    made = np.zeros((n, c, rows + 2 * up, columns + 2 * left))
    y, z = gradient.shape[2:]
    for i in range(weight.shape[2]):
        for j in range(weight.shape[3]):
            made[:, :, i:i + y * down:down, j:j + z * right:right] += np.einsum(
                "noyz,oc->ncyz", gradient, weight[:, :, i, j])
    return (made[:, :, up:up + rows, left:left + columns],)


# -- optimizers ------------------------------------------------------------------------------------------------------


def _sgd(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    return (arrays[0] - call.attributes["rate"] * arrays[1],)


def _adam(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """Its first step's correction is that of ``step`` (default 1)."""
    weight, gradient, mean, square = arrays
    one, two = call.attributes.get("betas", (0.9, 0.999))
    step = call.attributes.get("step", 1)
    mean = one * mean + (1 - one) * gradient
    square = two * square + (1 - two) * gradient**2
    move = (mean / (1 - one**step)) / (np.sqrt(square / (1 - two**step)) + call.attributes.get("eps", 1e-8))
    return weight - call.attributes["rate"] * move, mean, square


def _of_input(kind: str, reads: tuple[str, ...]) -> Callable[[int, int, Mapping[str, Any]], Gradient | None]:
    return lambda i, count, attributes: Gradient(kind, reads, attributes) if i == 0 else None


for _kind, _pair in _UNARY.items():
    _register_unary(_kind, *_pair)
KERNELS.update({
    "einsum": Kernel(_einsum, _einsum_gradient),
    "add": Kernel(_add, _add_gradient),
    "softmax": Kernel(_softmax, _of_input("softmax_grad", ("o0",))),
    "softmax_grad": Kernel(_softmax_grad),
    "log_softmax": Kernel(_log_softmax, _of_input("log_softmax_grad", ("o0",))),
    "log_softmax_grad": Kernel(_log_softmax_grad),
    "attention": Kernel(_attention, lambda i, count, attributes: Gradient(
        f"attention_grad{i}", ("i0", "i1", "i2"), attributes)),
    **{f"attention_grad{i}": Kernel(_attention_grad(i)) for i in range(3)},
    "top_k": Kernel(lambda arrays, call: (_top_k(arrays[0], call.attributes["k"]),), _of_input("top_k_grad", ("i0",))),
    "top_k_grad": Kernel(_top_k_grad),
    "cross_entropy": Kernel(_cross_entropy, _of_input("cross_entropy_grad", ("i0", "i1"))),
    "cross_entropy_grad": Kernel(_cross_entropy_grad),
    "norm": Kernel(_norm, _norm_gradient),
    "norm_grad_input": Kernel(_norm_grad_input),
    "norm_grad_weight": Kernel(_norm_grad_weight),
    "embedding": Kernel(_embedding, _of_input("embedding_grad", ("i1",))),
    "embedding_grad": Kernel(_embedding_grad),
    "convolution": Kernel(_convolution, lambda i, count, attributes: Gradient(
        ("convolution_grad_input", "convolution_grad_weight")[i], (("i1",), ("i0",))[i], attributes)),
    "convolution_grad_input": Kernel(_convolution_grad_input),
    "convolution_grad_weight": Kernel(_convolution_grad_weight),
    "reshape": Kernel(_reshape, lambda i, count, attributes: Gradient("reshape")),
    "take": Kernel(_take, _of_input("take_grad", ())),
    "take_grad": Kernel(_take_grad),
    "join": Kernel(_join, _join_gradient),
    "sgd": Kernel(_sgd),
    "adam": Kernel(_adam),
})
