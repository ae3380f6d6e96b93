"""Operators on weights whose weight gradient can wait, and the data that a backward leaves for W.

An operator runs on *inputs* and on *weights*. For a split backward it runs on the detached weights: so torch's own
backward gives the inputs' gradients in I, and nothing else. A tap (:class:`_Tap`) behind it passes the result's
gradient on and records it, with the tensors that the operator's :class:`Formula` keeps; from these the formula makes
the weights' gradients in W.

Weights need not be parameters: they may be the results of a function of parameters (a transpose, a cast, several of
them joined). Then W runs the function again, and torch differentiates it.

The formulas of torch's operators are in :mod:`~weft.runtime.train.formulas`; layers of modules, and the registration of
others, in :mod:`~weft.runtime.train.deferring`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.runtime.train.sharding import is_divided, local_of


def is_hooked(tensor: Tensor) -> bool:
    """Whether torch tells somebody of its gradient, as a gradient that is made in W does not come through torch."""
    return bool(tensor._backward_hooks)


class Formula:
    """One operator's computation, and how its weights' gradients are made later.

    One object may serve many calls: it has settings, but no tensors of its own.
    """

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result for the inputs ``xs``, by operators that torch can differentiate; and the tensors that
        :meth:`gradients` needs, such as ``xs`` themselves. It must draw no random numbers."""
        raise NotImplementedError

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        """The gradients of the weights, in their shapes, from the result's ``gradient`` and the tensors that
        :meth:`run` kept; new tensors, without shared memory. ``None`` is enough for a weight that is not ``wanted``."""
        raise NotImplementedError


class Again(Formula):
    """Any differentiable ``function(xs, weights)``: its weights' gradients are made by running it again, in W. That
    costs one more forward of it, under autocast where the first was. It must draw no random numbers and write
    nowhere."""

    def __init__(self, function: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]) -> None:
        self.function, self.autocast = function, dict[str, torch.dtype]()

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        device = weights[0].device.type
        self.autocast = {device: torch.get_autocast_dtype(device)} if torch.is_autocast_enabled(device) else {}
        return self.function(xs, weights), tuple(xs)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        """See :class:`Formula`."""
        entered = [weight.detach().requires_grad_(want) for weight, want in zip(weights, wanted, strict=True)]
        with torch.enable_grad(), ExitStack() as casting:
            for device, dtype in self.autocast.items():
                casting.enter_context(torch.autocast(device, dtype))
            y = self.function(kept, entered)
        found = iter(torch.autograd.grad(y, [w for w in entered if w.requires_grad], gradient, allow_unused=True))
        each = [next(found) if weight.requires_grad else None for weight in entered]
        return [None if one is None else _owned(one, gradient) for one in each]


class DeferredOperator(nn.Module):
    """An operator as a module: ``formula`` on inputs and on ``parameters``, from which ``function`` makes the weights
    (``None``: they are the weights). ``parameters``: by their names in this module."""

    def __init__(self, formula: Formula, parameters: Mapping[str, nn.Parameter],
                 function: Callable[..., Sequence[Tensor]] | None = None) -> None:
        super().__init__()
        self.formula, self.function = formula, function
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)

    def weights(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """The formula's weights for ``parameters``, which are this module's or stand for them."""
        return parameters if self.function is None else self.function(*parameters)

    def forward(self, *xs: Tensor) -> Tensor:
        """The result; torch's backward gives all gradients at once."""
        return self.formula.run(xs, self.weights(self.own))[0]

    def extra_repr(self) -> str:
        """The operator and its settings, which identify stages that are built alike."""
        own = {key: value for key, value in vars(self.formula).items() if not isinstance(value, FunctionType)}
        return f"{type(self.formula).__name__}({own}){getattr(self.function, 'code', '')}"

    @property
    def own(self) -> tuple[nn.Parameter, ...]:
        """Its current parameters."""
        return tuple(p for p in self._parameters.values() if p is not None)


class DeferredInputs(NamedTuple):
    """The inputs of the weight gradients of one use of an operator, after one micro-batch's input-gradient pass."""

    operator: DeferredOperator
    tensors: tuple[Tensor, ...]
    gradient: Tensor

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters that get a gradient from it, or may."""
        return self.operator.own

    def gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The trained parameters of the operator, and their gradients."""
        operator = self.operator
        own = _as_computed(operator.own, (self.gradient,))
        if operator.function is None:
            wanted = [p.requires_grad for p in operator.own]
            found = operator.formula.gradients(self.tensors, self.gradient, own, wanted)
            yield from ((p, g) for p, g, want in zip(operator.own, found, wanted, strict=True)
                        if want and g is not None)
            return
        entered = [p.detach().requires_grad_(of.requires_grad) for p, of in zip(own, operator.own, strict=True)]
        with torch.enable_grad():
            weights = operator.weights(entered)
        wanted = [weight.requires_grad for weight in weights]
        found = operator.formula.gradients(self.tensors, self.gradient, [w.detach() for w in weights], wanted)
        ends = [(w, g.to(w.dtype)) for w, g in zip(weights, found, strict=True) if w.requires_grad and g is not None]
        if not ends:
            return
        trained = [(p, e) for p, e in zip(operator.own, entered, strict=True) if e.requires_grad]
        back = torch.autograd.grad([w for w, _ in ends], [e for _, e in trained], [g for _, g in ends],
                                   allow_unused=True)
        for (parameter, _), gradient in zip(trained, back, strict=True):
            if gradient is not None:
                yield parameter, _owned(gradient, self.gradient)


class _Tap(torch.autograd.Function):
    """Passes an operator's result through: the same tensor. Its gradient is passed on, and recorded in ``kept``; the
    ``parameters`` are inputs so that the result has one."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, operator: DeferredOperator, tensors: Sequence[Tensor], kept: list[Any],
                *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*(tensor.detach() for tensor in tensors))
        ctx.operator, ctx.kept = operator, kept
        return y.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.kept.append(DeferredInputs(ctx.operator, ctx.saved_tensors, gradient))
        return (gradient if ctx.needs_input_grad[0] else None, None, None, None, *(None for _ in ctx.operator.own))


def tapped(operator: DeferredOperator, xs: Sequence[Tensor], kept: list[Any]) -> Tensor:
    """The result of ``operator`` for ``xs``, whose backward leaves the inputs of the weights' gradients in ``kept``."""
    own = operator.own
    y, tensors = operator.formula.run(xs, operator.weights([p.detach() for p in _as_computed(own, xs)]))
    found: Tensor = _Tap.apply(y, operator, tensors, kept, *own)  # type: ignore[no-untyped-call]
    return found


def _as_computed(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Sequence[Tensor]:
    """``parameters`` as an operator on ``values`` reads them: of plain ones, as in a loss, the numbers of this rank."""
    return parameters if any(map(is_divided, values)) else [local_of(parameter) for parameter in parameters]


def _owned(gradient: Tensor, other: Tensor) -> Tensor:
    """``gradient`` in separate plain memory, which can be added to: not expanded, and not that of ``other``."""
    if gradient.layout != torch.strided:
        return gradient
    found = gradient.contiguous()
    return found.clone() if found.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() else found


class DeferredLinear(torch.autograd.Function):
    """A linear layer whose backward gives the input gradient and keeps the inputs of its weight gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, operator: DeferredOperator,
                kept: list[DeferredInputs]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.operator, ctx.kept = operator, kept
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.kept.append(DeferredInputs(ctx.operator, (x.detach(),), gradient))
        x_gradient = (gradient @ weight.to(gradient.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        return x_gradient, None, None, None, None
