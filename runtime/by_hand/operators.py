"""The operators of plans, by kind: calls of torch on the tensors of a part.

Arguments that depend on the part are adjusted here: the shapes of views and of expanded or filled tensors, the first
row of a causal mask, a table or a range, the number of groups. Operators without inputs use torch's default device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.communication.calls import dropped
from weft.runtime.communication.rules import STATES, stepped

#: An operator's results, from the tensors of a part.
Operator: TypeAlias = Callable[..., "Tensor | tuple[Tensor, ...]"]
#: Names of the dimensions of a tensor.
_Axes: TypeAlias = Sequence[Sequence[str]]


def shape_of(call: KernelCall, axes: _Axes) -> list[int]:
    """The shape of a part's tensor with these dimension names."""
    return [math.prod(call.sizes[name] for name in axis) for axis in axes]


def _names(axes: _Axes) -> list[str]:
    return [name for axis in axes for name in axis]


def _aligned(call: KernelCall, tensor: Tensor, axes: _Axes, names: Sequence[str]) -> Tensor:
    """``tensor`` with an axis for each of ``names``, of length 1 for names that it lacks."""
    own = _names(axes)
    order = sorted(range(len(own)), key=lambda i: names.index(own[i]))
    flat = tensor.reshape([call.sizes[name] for name in own]).permute(order)
    return flat.reshape([call.sizes[name] if name in own else 1 for name in names])


def _spread(call: KernelCall, tensor: Tensor) -> Tensor:
    """``tensor``, which has an axis for each name of the output, expanded and reshaped to the output."""
    names = _names(call.outputs[0])
    return tensor.expand([call.sizes[name] for name in names]).reshape(shape_of(call, call.outputs[0]))


def _places(call: KernelCall, name: str, device: torch.device) -> Tensor:
    """The global positions of the part's indices of a name."""
    return torch.arange(call.sizes[name], device=device) + call.starts.get(name, 0)


# -- sums and products -------------------------------------------------------------------------------------------------


def _einsum(call: KernelCall, *inputs: Tensor) -> Tensor:
    every, wanted = [_names(axes) for axes in call.inputs], _names(call.outputs[0])
    place = {name: i for i, name in enumerate(dict.fromkeys(name for own in every for name in own))}
    dtype = functools.reduce(torch.promote_types, [one.dtype for one in inputs])  # einsum does not promote dtypes
    operands = [part for one, own in zip(inputs, every, strict=True) for part in (
        one.to(dtype).reshape([call.sizes[name] for name in own]), [place[name] for name in own])]
    made = torch.einsum(*operands, [place[name] for name in wanted if name in place])
    if call.attributes.get("scale", 1) != 1:
        made = made * call.attributes["scale"]
    return _spread(call, made.reshape([call.sizes[name] if name in place else 1 for name in wanted]))


def _add(call: KernelCall, *inputs: Tensor) -> Tensor:
    names, signs = _names(call.outputs[0]), call.attributes.get("signs") or [1.0] * len(inputs)
    terms = [_aligned(call, one, axes, names) for one, axes in zip(inputs, call.inputs, strict=True)]
    terms = [one if sign == 1 else one * _fitting(sign, one) for one, sign in zip(terms, signs, strict=True)]
    total = functools.reduce(torch.add, terms)
    constant = call.attributes.get("constant")
    return _spread(call, total + _fitting(constant, total) if constant else total)


def _fitting(number: float, like: Tensor) -> float:
    """``number`` as an integer if ``like`` is an integer tensor, so that the dtype is kept."""
    return int(number) if not like.is_floating_point() and number == int(number) else number


#: Elementwise operators whose names or arguments differ from torch's.
_CALLED: dict[str, Callable[..., Tensor]] = {
    "identity": lambda x: x * 1.0, "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "where": lambda mask, a, b: torch.where(mask != 0, a, b)}


def elementwise(kind: str) -> Operator | None:
    """The elementwise operator with torch's name ``kind``, or ``None``; the attribute ``constants`` has the positions
    of numbers among its operands."""
    function = _CALLED.get(kind) or getattr(torch.ops.aten, kind, None)
    if function is None:
        return None

    def run(call: KernelCall, *inputs: Tensor) -> Tensor:
        names = _names(call.outputs[0])
        given = iter([_aligned(call, one, axes, names) for one, axes in zip(inputs, call.inputs, strict=True)])
        places = call.attributes.get("constants") or (None,) * len(inputs)
        made = function(*(next(given) if constant is None else constant for constant in places))
        wanted = getattr(torch, call.attributes.get("dtype", "float32"))
        if wanted.is_floating_point != made.is_floating_point():
            made = made.to(wanted)  # for numbers alone, torch uses its default dtype
        return _spread(call, made)

    return run


# -- softmax, attention, norms, losses ---------------------------------------------------------------------------------


def _axis(call: KernelCall) -> int:
    """The axis of softmax."""
    return next(i for i, axis in enumerate(call.inputs[0]) if call.attributes["over"] in axis)


def _softmax(call: KernelCall, x: Tensor) -> Tensor:
    if call.attributes.get("causal"):
        query, key = call.attributes["causal"]
        hidden = _places(call, key, x.device) > _places(call, query, x.device)[:, None]
        x = x.masked_fill(_aligned(call, hidden, ((query,), (key,)), [axis[0] for axis in call.inputs[0]]), -math.inf)
    return torch.softmax(x, _axis(call))


def _top_k(call: KernelCall, x: Tensor) -> Tensor:
    """The softmax of the k largest elements; of equal elements, the first ones count."""
    least = torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :call.attributes["k"]]
    kept = torch.zeros_like(x, dtype=torch.bool).scatter(-1, least, True)
    return torch.softmax(x.masked_fill(~kept, -math.inf), -1)


def _attention(call: KernelCall, *tensors: Tensor) -> Tensor:
    """Torch's attention; a causal part reads the keys up to its last query, so that the fast kernels apply."""
    lead, query, key = _names(call.inputs[0][:-2]), call.inputs[0][-2][0], call.inputs[1][-2][0]
    heads = [math.prod(call.sizes[name] for name in lead[:-1]), *(call.sizes[name] for name in lead[-1:])]

    def four(tensor: Tensor, axes: _Axes, last: Sequence[str]) -> Tensor:
        """``tensor`` with four dimensions, as torch's kernels require: leading names (two dimensions), then
        ``last``."""
        made = _aligned(call, tensor, axes, [*lead, *last])
        made = made.expand(*(call.sizes[name] for name in lead), *made.shape[len(lead):])
        return made.reshape(*heads, *(1,) * (2 - len(heads)), *made.shape[len(lead):len(lead) + 1], -1)

    q = four(tensors[0], call.inputs[0], [query, *call.inputs[0][-1]])
    k, v = (four(tensors[i], call.inputs[i], [key, *call.inputs[i][-1]]) for i in (1, 2))
    mask: Any = None
    if len(tensors) > 3:
        mask = four(tensors[3], call.inputs[3], [query, key])
        mask = mask != 0 if call.attributes["mask"] == "truths" else mask.to(q.dtype)
    if call.attributes.get("causal"):
        first, rows, columns = call.starts.get(query, 0), q.shape[-2], k.shape[-2]
        if mask is None and not call.starts.get(key, 0) and first + rows <= columns:
            k, v, mask = k[..., :first + rows, :], v[..., :first + rows, :], causal_lower_right(rows, first + rows)
        else:
            seen = _places(call, key, q.device) <= _places(call, query, q.device)[:, None]
            mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.masked_fill(
                ~seen, -math.inf)
    return functional.scaled_dot_product_attention(q, k, v, mask, scale=call.attributes.get("scale"))


def _norm(call: KernelCall, x: Tensor, *weights: Tensor) -> Tensor:
    """A norm over some of the names; weights over exactly these are passed to torch, others are applied afterwards."""
    axes, eps = call.inputs[0], call.attributes.get("eps", 1e-5)
    names = _names(axes)
    over = [name for name in names if name in (call.attributes.get("over") or axes[-1])]
    order = [*(name for name in names if name not in over), *over]
    flat, shape = _aligned(call, x, axes, order), [call.sizes[name] for name in over]
    centred = call.attributes.get("centred", True)
    whole = all(_names(own) == over for own in call.inputs[1:]) and len(weights) <= (2 if centred else 1)
    weight, bias = (*(one.reshape(shape) for one in (weights if whole else ())), None, None)[:2]
    made = functional.layer_norm(flat, shape, weight, bias, eps) if centred else functional.rms_norm(
        flat, shape, weight, eps)
    if not whole:
        factor, *shift = (_aligned(call, one, own, order) for one, own in zip(weights, call.inputs[1:], strict=True))
        made = torch.add(made * factor, *shift) if shift else made * factor
    return made.permute([order.index(name) for name in names]).reshape(x.shape)


def _cross_entropy(call: KernelCall, logits: Tensor, targets: Tensor) -> Tensor:
    ignored, classes, found = call.attributes.get("ignored", -100), logits.shape[-1], targets.long()
    if ((found != ignored) & ((found < 0) | (found >= classes))).any():
        raise ValueError(f"cross_entropy: a target is not one of 0 to {classes - 1}, nor {ignored}, which is ignored")
    return functional.cross_entropy(logits.reshape(-1, classes), found.reshape(-1), ignore_index=ignored,
                                    reduction="none").reshape(targets.shape)


# -- convolutions ------------------------------------------------------------------------------------------------------


def _convolution(call: KernelCall, x: Tensor, weight: Tensor) -> Tensor:
    rank, name = x.ndim - 2, call.attributes.get("groups")
    ends = [(one, one) if isinstance(one, int) else one for one in call.attributes.get("padding", (0,) * rank)]
    x = functional.pad(x, [amount for pair in reversed(ends) for amount in pair])
    made = torch.convolution(x, weight, None, call.attributes.get("stride", (1,) * rank), (0,) * rank,
                             call.attributes.get("dilation", (1,) * rank), False, (0,) * rank,
                             call.sizes[name] if name else 1)
    ends_at: Any = (..., *(slice(0, size) for size in shape_of(call, call.outputs[0])[2:]))
    return made[ends_at]


def _transposed(call: KernelCall, x: Tensor, weight: Tensor) -> Tensor:
    """A transposed convolution; output positions that no window reaches are appended."""
    rank, name = x.ndim - 2, call.attributes.get("groups")
    stride, padding, dilation = (call.attributes.get(key, (one,) * rank) for key, one in (
        ("stride", 1), ("padding", 0), ("dilation", 1)))
    more = [size - ((had - 1) * s - 2 * p + d * (k - 1) + 1) for size, had, s, p, d, k in zip(
        shape_of(call, call.outputs[0])[2:], x.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)]
    return torch.convolution(x, weight, None, stride, padding, dilation, True, more, call.sizes[name] if name else 1)


# -- rows and elements by indices --------------------------------------------------------------------------------------


def _own(call: KernelCall, indices: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Indices relative to this part of the indexed name, and a mask of those that are in it; negative indices count
    from the end."""
    rows, length = indices.long(), call.attributes.get("length", 0)
    rows = torch.where(rows < 0, rows + length, rows) - call.starts.get(name, 0)
    here = (rows >= 0) & (rows < call.sizes[name])
    return rows.where(here, torch.zeros_like(rows)), here


def _embedding(call: KernelCall, table: Tensor, ids: Tensor) -> Tensor:
    """An embedding; the padding row has no gradient."""
    name = call.inputs[0][0][0]
    rows, here = _own(call, ids, name)
    padding = call.attributes.get("padding", -1) - call.starts.get(name, 0)
    return functional.embedding(rows, table, padding if 0 <= padding < len(table) else None) * here[..., None]


def _index(call: KernelCall, x: Tensor, *indices: Tensor) -> Tensor:
    """Indexing; with one indexed axis, the result is zero for indices outside of this part."""
    axes = call.attributes["at"]
    found: list[Any] = [slice(None)] * x.ndim
    if len(axes) > 1:
        for axis, one in zip(axes, indices, strict=True):
            found[axis] = one.long()
        return x[tuple(found)]
    found[axes[0]], here = _own(call, indices[0], call.inputs[0][axes[0]][0])
    made = x[tuple(found)]
    return made.masked_fill(~here.reshape([*here.shape, *[1] * (made.ndim - axes[0] - here.ndim)]), 0)


def _gather(call: KernelCall, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.attributes["axis"]
    rows, here = _own(call, indices, call.inputs[0][axis][0])
    return x.gather(axis, rows).masked_fill(~here, 0)


def _order(call: KernelCall, x: Tensor) -> Tensor:
    """The positions of the largest (or smallest) elements along an axis; equal elements keep their order."""
    axis = call.attributes["axis"]
    order = torch.sort(x, dim=axis, descending=call.attributes["largest"], stable=True).indices
    return order.narrow(axis, 0, call.attributes["count"])


# -- created tensors ---------------------------------------------------------------------------------------------------


def _dtype(call: KernelCall) -> torch.dtype:
    found: torch.dtype = getattr(torch, call.attributes["dtype"])
    return found


def _range(call: KernelCall) -> Tensor:
    places = _places(call, call.outputs[0][0][0], torch.get_default_device())
    found: Tensor = call.attributes["start"] + places * call.attributes["stride"]
    return found.to(_dtype(call))


def _dropout(call: KernelCall, x: Tensor, seed: Tensor) -> Tensor:
    """Dropout by a hash of the step's seed, the operator's seed and the element's global position, so that parts drop
    the same elements as the full tensor."""
    place = torch.zeros([1] * x.ndim, dtype=torch.int64, device=x.device)
    for axis, (names, length) in enumerate(zip(call.inputs[0], call.attributes["lengths"], strict=True)):
        along = torch.arange(x.shape[axis], device=x.device) + (call.starts.get(names[0], 0) if names else 0)
        place = place * length + along.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    keep = dropped(place, call.attributes["probability"], (seed.long() << 32) + call.attributes["own"])
    return (x * keep.to(x.dtype)).masked_fill(keep == 0, 0)


def _adam(call: KernelCall, weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor,
          step: Tensor | None = None) -> tuple[Tensor, ...]:
    """AdamW's update; the bias correction is that of step ``step`` (default 1), or of the fifth input."""
    made, given = [one.clone() for one in (weight, mean, square)], call.attributes
    stepped("adamw", made[:1], [gradient], [dict(zip(STATES, made[1:], strict=True))],
            [float(step) if step is not None else given.get("step", 1)],
            {"betas": given.get("betas", (0.9, 0.999)), "lr": given["rate"], "weight_decay": given.get("decay", 0.0),
             "eps": given.get("eps", 1e-8)})
    return tuple(made)


OPERATORS: dict[str, Operator] = {
    "einsum": _einsum, "add": _add, "reshape": lambda call, x: x,
    "join": lambda call, *inputs: torch.cat(inputs, call.attributes["axis"]),
    "softmax": _softmax, "top_k": _top_k, "log_softmax": lambda call, x: torch.log_softmax(x, _axis(call)),
    "softmax_grad": lambda call, back, y: torch.ops.aten._softmax_backward_data(back, y, _axis(call), y.dtype),
    "log_softmax_grad": lambda call, back, y: torch.ops.aten._log_softmax_backward_data(back, y, _axis(call), y.dtype),
    "attention": _attention, "norm": _norm, "cross_entropy": _cross_entropy,
    "convolution": _convolution, "convolution_transposed": _transposed,
    "embedding": _embedding, "index": _index, "gather": _gather, "places": _order,
    "full": lambda call: torch.full(shape_of(call, call.outputs[0]), call.attributes["value"], dtype=_dtype(call)),
    "range": _range, "cast": lambda call, x: x.to(_dtype(call)), "dropout": _dropout,
    "sgd": lambda call, weight, gradient: weight - call.attributes["rate"] * gradient, "adam": _adam,
}
