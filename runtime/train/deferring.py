"""Which layers of a module leave their weight gradients for W, and how further kinds are registered.

By default a split backward defers ``nn.Linear``, convolutions (transposed ones too) and ``nn.Embedding``. Norms stay in
I until they are registered: see :data:`weft.runtime.train.formulas.LIGHT` for why. A subclass may compute something
else, so only the exact type counts; a layer with a parametrization or a hook that makes its weight is not deferred.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.func import functional_call

from weft.runtime.train.deferred import Again, DeferredOperator, Formula, is_hooked
from weft.runtime.train.formulas import Convolution, Linear, Table, same_padding

#: Makes the formula of a layer, or ``None`` for one that cannot wait.
Maker = Callable[..., Formula | None]


def register_deferred(layer: type[nn.Module], maker: Maker | None = None) -> None:
    """Let the weight gradients of all layers whose type is ``layer``, exactly, wait for W when a backward is split.

    ``maker(LAYER)`` returns a :class:`~weft.runtime.train.deferred.Formula`, or ``None`` for one that cannot wait. Its
    weights are ``tuple(LAYER.parameters())``; it must compute the same as the layer's forward on positional tensors (in
    a call with other arguments, gradients come in I). Without a maker W runs the layer's forward again and torch
    differentiates it: then the layer must return one tensor, draw no random numbers, and write nowhere.

    A layer whose weight is a diagonal, with its own formula::

        class Diagonal(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(width))

            def forward(self, x):
                return x * self.weight

        class DiagonalFormula(Formula):
            def run(self, xs, weights):  # the result, and what W needs beside its gradient
                return xs[0] * weights[0], (xs[0],)

            def gradients(self, kept, gradient, weights, wanted):
                return [(gradient * kept[0]).flatten(0, -2).sum(0)]

        register_deferred(Diagonal, lambda layer: DiagonalFormula())
        register_deferred(nn.LayerNorm)      # W runs it again

    Call it on all ranks, before stages are measured and before they run. Raises ``TypeError`` for anything but a module
    type.
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TypeError(f"{layer!r:.60} is no type of torch.nn.Module: give the layer's class")
    _MAKERS[layer] = maker or _KNOWN.get(layer, _again)


def deferrable(module: nn.Module) -> list[nn.Module]:
    """The layers of ``module`` whose weight gradients a split backward defers: operators of a captured graph, and
    layers of registered types, with real parameters. Modules inside such a layer are part of it."""
    found: dict[nn.Module, None] = {}
    waiting = [module]
    while waiting:
        layer = waiting.pop()
        if layer in found:
            continue
        if can_wait(layer):
            found[layer] = None
        else:
            waiting += reversed(list(layer.children()))
    return list(found)


def deferred_parameters(module: nn.Module) -> set[nn.Parameter]:
    """The trained parameters that get a gradient in W."""
    return {p for layer in deferrable(module) for p in layer.parameters() if p.requires_grad}


def can_wait(layer: nn.Module) -> bool:
    """Whether the weight gradients of ``layer`` can be deferred."""
    if isinstance(layer, DeferredOperator):
        return not any(p.is_complex() for p in layer.own)
    return type(layer) in _MAKERS and _is_plain(layer) and _MAKERS[type(layer)](layer) is not None


def operator_of(layer: nn.Module) -> DeferredOperator:
    """The operator that replaces ``layer``, one of :func:`deferrable`."""
    if isinstance(layer, DeferredOperator):
        return layer
    formula = _MAKERS[type(layer)](layer)
    assert formula is not None
    return DeferredOperator(formula, {f"p{i}": p for i, p in enumerate(layer.parameters())})


def _is_plain(layer: nn.Module) -> bool:
    """Whether its parameters are in the usual places of its type: not made by a hook, and real."""
    parameters = list(layer.parameters())
    is_there = "weight" in layer._parameters or not hasattr(layer, "weight")
    return is_there and bool(parameters) and not any(p.is_complex() or is_hooked(p) for p in parameters)


def _linear(layer: nn.Linear) -> Formula:
    return Linear()


def _convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Formula | None:
    if layer.padding_mode != "zeros":
        return None
    if isinstance(layer.padding, str):
        whole = [d * (k - 1) if layer.padding == "same" else 0
                 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        padding, pad = same_padding(whole)
        return Convolution(layer.stride, padding, layer.dilation, False, [0] * len(whole), layer.groups, pad)
    return Convolution(layer.stride, layer.padding, layer.dilation, False, [0] * len(layer.stride), layer.groups)


def _transposed(layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d) -> Formula | None:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    return Convolution(layer.stride, layer.padding, layer.dilation, True, layer.output_padding, layer.groups)


def _embedding(layer: nn.Embedding) -> Formula | None:
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        return None
    return Table(-1 if layer.padding_idx is None else layer.padding_idx)


def _again(layer: nn.Module) -> Formula:
    """Its own forward, without the hooks that its caller has run."""
    plain = copy.copy(layer)
    plain.__dict__.pop("forward", None)
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        plain.__dict__[hooks] = type(getattr(layer, hooks))()
    plain.__dict__["_parameters"] = dict(layer._parameters)
    names = [name for name, _ in layer.named_parameters()]

    def run(xs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        found: Tensor = functional_call(plain, dict(zip(names, weights, strict=True)), tuple(xs))
        return found

    return Again(run)


_MAKERS: dict[type[nn.Module], Maker] = {
    nn.Linear: _linear, nn.Conv1d: _convolution, nn.Conv2d: _convolution, nn.Conv3d: _convolution,
    nn.ConvTranspose1d: _transposed, nn.ConvTranspose2d: _transposed, nn.ConvTranspose3d: _transposed,
    nn.Embedding: _embedding}
_KNOWN = dict(_MAKERS)
