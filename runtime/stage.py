"""One stage of a model: its forward, full backward, input gradient and weight gradient, one micro-batch at a time.

The split backward is a weight-gradient store (the idea of zero-bubble pipelines: Qi et al., ICLR 2024, section 2): the
input-gradient pass goes through the whole graph and frees it, but a linear layer only notes its input and its output's
gradient there, and the weight-gradient pass multiplies them. PyTorch's own split keeps the graph until the
weight-gradient pass, and more beside it. All parameters that are not a linear layer's get their gradients in the
input-gradient pass: they cost little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["StageRunner"]


class _Kept(NamedTuple):
    """What the weight gradient of one linear layer needs, after one micro-batch's input-gradient pass."""

    layer: nn.Linear
    x: Tensor
    gradient: Tensor


class _DeferredLinear(torch.autograd.Function):
    """A linear layer whose backward gives the input gradient and keeps what its weight gradient needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Linear,
                kept: list[_Kept]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.kept = layer, kept
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.kept.append(_Kept(ctx.layer, x.detach(), gradient))
        x_gradient = (gradient @ weight.to(gradient.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        return x_gradient, None, None, None, None


class StageRunner:
    """Runs ``module`` (one tensor in, one tensor out) on micro-batches that overlap in time.

    With ``split``, its plain ``nn.Linear`` layers defer their weight gradients; the layers are changed in place, and
    given back by :meth:`close`. Hooks on those layers' weights do not see the deferred gradients, and the module must
    not be compiled. The ``first`` stage has no input gradient. Nothing is shared between runners.
    """

    def __init__(self, module: nn.Module, *, split: bool = False, first: bool = False) -> None:
        self.module, self.first = module, first
        self._graphs: dict[int, tuple[Tensor, Tensor]] = {}  # micro-batch -> (stage input, what backward starts from)
        self._kept: dict[int, list[_Kept]] = {}
        self._micro_batch = 0
        self._split = [layer for layer in module.modules() if type(layer) is nn.Linear] if split else []
        for layer in self._split:
            layer.__dict__["forward"] = self._deferring(layer)

    def close(self) -> None:
        """Give the module its own linear layers back."""
        for layer in self._split:
            layer.__dict__.pop("forward", None)

    @property
    def held(self) -> tuple[int, int]:
        """How many micro-batches have a graph kept, and how many wait for their weight gradient only."""
        return len(self._graphs), len(self._kept.keys() - self._graphs.keys())

    def forward(self, micro_batch: int, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The stage's output for ``x``, detached; with ``loss``, the loss of that output.

        The graph is kept until the backward.
        """
        x = x.detach()
        if not self.first:
            x.requires_grad_()
        self._micro_batch = micro_batch
        y: Tensor = self.module(x)
        if loss is not None:
            y = loss(y)
        self._graphs[micro_batch] = x, y
        return y.detach()

    def infer(self, x: Tensor) -> Tensor:
        """The stage's output for ``x`` without keeping anything."""
        with torch.no_grad():
            y: Tensor = self.module(x)
        return y

    def backward(self, micro_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Full backward from the output's ``gradient`` (``None`` where :meth:`forward` gave a loss).

        Adds to the parameters' gradients and returns the input's (``None`` on the first stage).
        """
        self._micro_batch = micro_batch  # for layers that are recomputed now
        x, y = self._graphs.pop(micro_batch)
        torch.autograd.backward(y, gradient)
        return x.grad

    def input_grad(self, micro_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Backward without the linear layers' weight gradients, which :meth:`weight_grad` must follow with."""
        self._kept.setdefault(micro_batch, [])
        return self.backward(micro_batch, gradient)

    def weight_grad(self, micro_batch: int) -> None:
        """Add the weight gradients that :meth:`input_grad` deferred, and free what it kept."""
        with torch.no_grad():
            for layer, x, gradient in _drain(self._kept.pop(micro_batch)):
                rows = gradient.reshape(-1, gradient.shape[-1])
                if layer.weight.requires_grad:
                    _add(layer.weight, rows.T @ x.reshape(-1, x.shape[-1]).to(rows.dtype))
                if layer.bias is not None and layer.bias.requires_grad:
                    _add(layer.bias, rows.sum(0))

    def _deferring(self, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if not (torch.is_grad_enabled() and layer.weight.requires_grad):
                return nn.Linear.forward(layer, x)
            kept = self._kept.setdefault(self._micro_batch, [])
            y: Tensor = _DeferredLinear.apply(x, layer.weight, layer.bias, layer, kept)  # type: ignore[no-untyped-call]
            return y

        return forward


def _drain(kept: list[_Kept]) -> Iterator[_Kept]:
    while kept:
        yield kept.pop()  # each is freed as soon as it has been used


def _add(parameter: Tensor, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
