"""What parts compute, with torch: the kernels of :mod:`weft.models.transform.kernels` by the same names."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from weft.runtime.by_hand.instructions import KernelCall

__all__ = ["run_kernel"]

_Run: TypeAlias = Callable[[Sequence[Tensor], KernelCall], tuple[Tensor, ...]]


def run_kernel(call: KernelCall, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a part. Raises ``ValueError`` for a kernel that torch has no function for here."""
    if call.kind not in _KERNELS:
        raise ValueError(f"the kernel {call.kind!r} cannot be run with torch: there is no function for it")
    with torch.no_grad():
        return _KERNELS[call.kind](inputs, call)


def _shape(call: KernelCall, tensor: Sequence[Sequence[str]]) -> list[int]:
    return [math.prod(call.sizes[name] for name in axis) for axis in tensor]


def _flat(call: KernelCall, tensor: Tensor, axes: Sequence[Sequence[str]]) -> Tensor:
    return tensor.reshape([call.sizes[name] for axis in axes for name in axis])


def _einsum(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    names = list(dict.fromkeys(name for tensor in (*call.inputs, *call.outputs) for axis in tensor for name in axis))
    letters = {name: chr(97 + i) for i, name in enumerate(names)}
    given = {name for tensor in call.inputs for axis in tensor for name in axis}
    wanted = [name for axis in call.outputs[0] for name in axis]
    left = ",".join("".join(letters[name] for axis in tensor for name in axis) for tensor in call.inputs)
    right = "".join(letters[name] for name in wanted if name in given)
    flat = [_flat(call, tensor, axes) for tensor, axes in zip(inputs, call.inputs, strict=True)]
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in flat])
    flat = [tensor.to(dtype) for tensor in flat]  # einsum has none of its own for integers beside numbers
    made = torch.einsum(f"{left}->{right}", *flat)
    if call.attributes.get("scale", 1.0) != 1.0:
        made = made * call.attributes["scale"]
    made = made.reshape([call.sizes[name] if name in given else 1 for name in wanted])
    return (made.expand([call.sizes[name] for name in wanted]).reshape(_shape(call, call.outputs[0])),)


def _add(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    names = [name for axis in call.outputs[0] for name in axis]
    total = inputs[0].new_zeros([call.sizes[name] for name in names]) + call.attributes.get("constant", 0.0)
    signs = call.attributes.get("signs") or [1.0] * len(inputs)
    for tensor, axes, sign in zip(inputs, call.inputs, signs, strict=True):
        own = [name for axis in axes for name in axis]
        order = sorted(range(len(own)), key=lambda i: names.index(own[i]))
        flat = _flat(call, tensor, axes).permute(order)
        total = total + flat.reshape([call.sizes[name] if name in own else 1 for name in names]) * sign
    return (total.reshape(_shape(call, call.outputs[0])),)


_UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x * 1.0, "relu": torch.relu, "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "silu": functional.silu, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "exp": torch.exp, "square": torch.square, "sqrt": torch.sqrt, "log": torch.log,
    "reciprocal": torch.reciprocal}


def _back(function: Callable[..., Tensor], inputs: Sequence[Tensor], which: int) -> Tensor:
    """The gradient of one input of ``function``; the output's is the first of ``inputs``."""
    with torch.enable_grad():
        given = [tensor.detach() for tensor in inputs[1:]]
        given[which].requires_grad_(True)
        found, = torch.autograd.grad(function(*given), given[which], inputs[0])
    return found


def _of(function: Callable[..., Tensor]) -> _Run:
    return lambda inputs, call: (function(*inputs),)


def _back_of(function: Callable[[KernelCall], Callable[..., Tensor]], which: int = 0) -> _Run:
    return lambda inputs, call: (_back(function(call), inputs, which),)


def _axis(call: KernelCall, name: str, tensor: int = 0) -> int:
    return next(i for i, axis in enumerate(call.inputs[tensor]) if name in axis)


def _hidden(call: KernelCall, query: str, key: str, like: Tensor) -> Tensor:
    """Which keys come after which queries: [query, key]."""
    rows = torch.arange(call.sizes[query], device=like.device) + call.starts.get(query, 0)
    columns = torch.arange(call.sizes[key], device=like.device) + call.starts.get(key, 0)
    return columns[None, :] > rows[:, None]


def _softmax(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    x = inputs[0]
    if call.attributes.get("causal"):
        query, key = call.attributes["causal"]
        hidden = _hidden(call, query, key, x)
        rows, columns = _axis(call, query), _axis(call, key)
        if rows > columns:
            hidden = hidden.T
        x = x.masked_fill(hidden.reshape([n if i in (rows, columns) else 1 for i, n in enumerate(x.shape)]), -math.inf)
    return (torch.softmax(x, _axis(call, call.attributes["over"])),)


def _softmax_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, y = inputs
    return (y * (gradient - (gradient * y).sum(_axis(call, call.attributes["over"]), keepdim=True)),)


def _log_softmax_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, y = inputs
    return (gradient - y.exp() * gradient.sum(_axis(call, call.attributes["over"]), keepdim=True),)


def _attention_of(at: int) -> Callable[[KernelCall], Callable[..., Tensor]]:
    """Attention, the queries being input ``at``."""
    def of(call: KernelCall) -> Callable[..., Tensor]:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            query, key = call.inputs[at][2][0], call.inputs[at + 1][2][0]
            mask = ~_hidden(call, query, key, q) if call.attributes.get("causal") else None
            return functional.scaled_dot_product_attention(q, k, v, mask, scale=call.attributes.get("scale"))

        return run

    return of


def _top_k(call: KernelCall) -> Callable[..., Tensor]:
    def run(x: Tensor) -> Tensor:
        least = torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :call.attributes["k"]]
        kept = torch.zeros_like(x, dtype=torch.bool).scatter(-1, least, True)
        return torch.softmax(x.masked_fill(~kept, -math.inf), -1)

    return run


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError(f"cross_entropy: a target is not one of 0 to {logits.shape[-1] - 1}: targets that are ignored "
                         "are not known here")
    return torch.logsumexp(logits, -1) - logits.gather(-1, targets.long()[..., None])[..., 0]


def _standardized(x: Tensor, call: KernelCall) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if call.attributes.get("centred", True) else x
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + call.attributes.get("eps", 1e-5))


def _norm(call: KernelCall) -> Callable[..., Tensor]:
    def run(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        y = _standardized(x, call)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    return run


def _norm_grad_weight(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, x = inputs
    return ((gradient * _standardized(x, call)).reshape(-1, x.shape[-1]).sum(0),)


def _rows(ids: Tensor, name: str, call: KernelCall) -> tuple[Tensor, Tensor]:
    own = ids.long() - call.starts.get(name, 0)
    here = (own >= 0) & (own < call.sizes[name])
    return own.where(here, torch.zeros_like(own)), here


def _embedding(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    rows, here = _rows(inputs[1], call.inputs[0][0][0], call)
    return (inputs[0][rows] * here[..., None],)


def _embedding_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, ids = inputs
    rows, here = _rows(ids, call.outputs[0][0][0], call)
    here = here & (ids != call.attributes.get("padding", -1))
    made = gradient.new_zeros(_shape(call, call.outputs[0]))
    return (made.index_add(0, rows.reshape(-1), (gradient * here[..., None]).reshape(-1, gradient.shape[-1])),)


def _convolution(call: KernelCall) -> Mapping[str, Any]:
    return {"stride": call.attributes.get("stride", (1, 1)), "padding": call.attributes.get("padding", (0, 0))}


def _convolution_grad(which: int) -> _Run:
    """The gradient of the input, or of the weight; of what it does not depend on, the shape counts."""
    def run(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
        gradient, other = inputs
        own = gradient.new_zeros(_shape(call, call.outputs[0]))
        given = [gradient, own, other] if which == 0 else [gradient, other, own]
        return (_back(lambda x, weight: functional.conv2d(x, weight, **_convolution(call)), given, which),)

    return run


def _take(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    start, stop, step = call.attributes["span"]
    return (inputs[0].index_select(call.attributes["axis"], torch.arange(start, stop, step, device=inputs[0].device)),)


def _take_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    start, stop, step = call.attributes["span"]
    made = inputs[0].new_zeros(_shape(call, call.outputs[0]))
    at = torch.arange(start, stop, step, device=made.device)
    return (made.index_add(call.attributes["axis"], at, inputs[0]),)


def _adam(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    weight, gradient, mean, square = inputs
    one, two = call.attributes.get("betas", (0.9, 0.999))
    step = call.attributes.get("step", 1)
    mean = one * mean + (1 - one) * gradient
    square = two * square + (1 - two) * gradient**2
    move = (mean / (1 - one**step)) / ((square / (1 - two**step)).sqrt() + call.attributes.get("eps", 1e-8))
    return weight - call.attributes["rate"] * move, mean, square


_KERNELS: Mapping[str, _Run] = {
    "einsum": _einsum, "add": _add,
    **{kind: _of(function) for kind, function in _UNARY.items()},
    **{f"{kind}_grad": _back_of(lambda call, function=function: function)  # type: ignore[misc]
       for kind, function in _UNARY.items()},
    "softmax": _softmax, "softmax_grad": _softmax_grad,
    "log_softmax": lambda inputs, call: (torch.log_softmax(inputs[0], _axis(call, call.attributes["over"])),),
    "log_softmax_grad": _log_softmax_grad,
    "attention": lambda inputs, call: (_attention_of(0)(call)(*inputs),),
    **{f"attention_grad{i}": _back_of(_attention_of(1), i) for i in range(3)},
    "top_k": lambda inputs, call: (_top_k(call)(*inputs),), "top_k_grad": _back_of(_top_k),
    "cross_entropy": _of(_cross_entropy), "cross_entropy_grad": _back_of(lambda call: _cross_entropy),
    "norm": lambda inputs, call: (_norm(call)(*inputs),), "norm_grad_input": _back_of(_norm),
    "norm_grad_weight": _norm_grad_weight, "embedding": _embedding, "embedding_grad": _embedding_grad,
    "convolution": lambda inputs, call: (functional.conv2d(inputs[0], inputs[1], **_convolution(call)),),
    "convolution_grad_input": _convolution_grad(0), "convolution_grad_weight": _convolution_grad(1),
    "reshape": lambda inputs, call: (inputs[0].reshape(_shape(call, call.outputs[0])),),
    "take": _take, "take_grad": _take_grad,
    "join": lambda inputs, call: (torch.cat(list(inputs), call.attributes["axis"]),),
    "sgd": lambda inputs, call: (inputs[0] - call.attributes["rate"] * inputs[1],), "adam": _adam,
}
