"""The computation of parts: torch operators on local tensors, with gradients by autograd.

A kind is a function of :mod:`weft.runtime.by_hand.operators`, an elementwise operator of torch by name, or, if the call
has a ``target``, the captured operator. ``KIND_gradN`` is the gradient of its input N.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.operators import OPERATORS, Operator, elementwise, shape_of

#: Gradients with names other than ``KIND_gradN``, and those that do not read the first inputs: the operator, the input
#: #: that the gradient is of, and the first input that is read.
_GRADIENTS: Mapping[str, tuple[str, int, int]] = {
    "norm_grad_input": ("norm", 0, 0), "norm_grad_weight": ("norm", 1, 0),
    "convolution_grad_input": ("convolution", 0, 1), "convolution_grad_weight": ("convolution", 1, 0),
    "convolution_transposed_grad_weight": ("convolution_transposed", 1, 0),
    "embedding_grad": ("embedding", 0, 1), "index_grad": ("index", 0, 1), "gather_grad": ("gather", 0, 1),
}
_GRADIENT = re.compile(r"(\w+)_grad(\d*)")


def runs(kind: str, attributes: Mapping[str, Any]) -> bool:
    """Whether a call of ``kind`` can be run. A captured operator cannot be run if torch lacks it, if it draws random
    numbers (which would differ between devices), or if it depends on strides, which a part does not preserve."""
    return _found(kind, attributes) is not None


def of_one_backward(one: KernelCall, other: KernelCall) -> bool:
    """Whether two calls that read the same tensors are gradients of different inputs of one operator, so that one
    backward computes both."""
    kinds = [_GRADIENT.fullmatch(call.kind) for call in (one, other) if call.kind not in _GRADIENTS]
    return len(kinds) == 2 and all(found is not None and found[2] for found in kinds) and len(
        {found[1] for found in kinds if found is not None}) == 1 and replace(
            one, kind=other.kind, outputs=other.outputs) == other


def run_kernel(call: KernelCall, inputs: Sequence[Tensor], also: Sequence[KernelCall] = ()) -> tuple[Tensor, ...]:
    """The outputs of a part, followed by those of ``also``, other gradients of the same backward
    (:func:`of_one_backward`). Raises ``ValueError`` for a kind that cannot be run."""
    found = _found(call.kind, call.attributes)
    if found is None:
        raise ValueError(f"the kernel {call.kind!r} cannot be run with torch: there is no function for it")
    operator, which, first = found
    with torch.no_grad():
        if which is None:
            made = operator(call, *inputs)
        else:
            others = [found[1] or 0 for one in also if (found := _found(one.kind, one.attributes)) is not None]
            made = _gradients(call, operator, [which, *others], first, inputs)
    every = made if isinstance(made, tuple) else (made,)
    shapes = [tensor for one in (call, *also) for tensor in one.outputs]
    return tuple(one.reshape(shape_of(call, tensor)) for one, tensor in zip(every, shapes, strict=True))


def in_torch(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of tensors as the kernel of a user's operator of that name. Raises ``ValueError`` for a name
    that already has a kernel."""
    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        if runs(kind, {}):
            raise ValueError(f"there is a kernel {kind!r} already")
        OPERATORS[kind] = lambda call, *inputs: function(*inputs, **call.attributes)
        return function

    return registered


def forget(kind: str) -> None:
    """Unregister a user's own operator."""
    OPERATORS.pop(kind, None)


def _found(kind: str, attributes: Mapping[str, Any]) -> tuple[Operator, int | None, int] | None:
    """The function of a kind; for a gradient, also the number of the differentiated input, and that of the first input
    that is read."""
    name, which, first = kind, None, 0
    if kind in _GRADIENTS:
        name, which, first = _GRADIENTS[kind]
    elif kind not in OPERATORS and (gradient := _GRADIENT.fullmatch(kind)):
        name, which = gradient[1], int(gradient[2] or 0)
        which -= sum(constant is not None for constant in attributes.get("constants", ())[:which])
    operator = _captured(attributes["target"]) if "target" in attributes else OPERATORS.get(name)
    if operator is None and "target" not in attributes:
        operator = elementwise(name)
    return None if operator is None else (operator, which, first)


def _gradients(call: KernelCall, operator: Operator, which: Sequence[int], first: int,
               inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of the inputs ``which`` of an operator. The first of ``inputs`` is the output's gradient, the
    others are the operator's inputs from ``first`` on; earlier inputs do not affect the result."""
    back, given = inputs[0], [tensor.detach() for tensor in inputs[1:]]
    if not back.is_floating_point() and not back.is_complex():  # a sum of integers, computed exactly
        return tuple(one.to(back.dtype) for one in _gradients(call, operator, which, first, [
            back.double(), *inputs[1:]]))
    how, places = list(call.inputs[1:]), [max(0, one - first) for one in which]
    if not first <= which[0] < first + len(given):
        given.insert(places[0], back.new_zeros(shape_of(call, call.outputs[0])))
        how.insert(places[0], call.outputs[0])
    with torch.enable_grad():
        wanted = [given[place].requires_grad_(True) for place in places]
        made = operator(replace(call, inputs=tuple(how), outputs=(call.inputs[0],)), *given)
        made = made[0] if isinstance(made, tuple) else made
        found = torch.autograd.grad(made, wanted, back.reshape(made.shape), allow_unused=True)
    return tuple(torch.zeros_like(one) if gradient is None else gradient
                 for one, gradient in zip(wanted, found, strict=True))


def _captured(target: str) -> Operator | None:
    """The captured operator ``target`` as a function of a part's call and tensors; ``None`` if it cannot be run."""
    operator: Any = torch
    for name in target.removeprefix("torch.").split("."):
        operator = getattr(operator, name, None)
    if not isinstance(operator, torch._ops.OpOverload) or "as_strided" in target:
        return None
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return None

    def run(call: KernelCall, *inputs: Tensor) -> tuple[Tensor, ...]:
        tensors = [one.clone() for one in inputs] if operator._schema.is_mutable else inputs
        arguments, keywords = (_filled(call.attributes[key], tensors) for key in ("arguments", "keywords"))
        made = operator(*arguments, **keywords)
        results = made if isinstance(made, tuple | list) else (made,)
        return tuple(results[i] for i in call.attributes["given"])

    return run


def _filled(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Arguments with names of tensors and torch constants replaced by these."""
    if isinstance(value, Mapping):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return getattr(torch, value["constant"]) if "constant" in value else {
            key: _filled(entry, tensors) for key, entry in value.items()}
    return [_filled(entry, tensors) for entry in value] if isinstance(value, list | tuple) else value
