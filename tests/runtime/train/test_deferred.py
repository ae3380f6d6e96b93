"""Operators whose weight gradients wait: the same values and gradients as torch's own, only later."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.runtime.train.deferred import Again, DeferredOperator
from weft.runtime.train.formulas import Product, Shift
from weft.runtime.train.stage import StageRunner, deferrable, deferred_parameters


def weights(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64))


def same(layer: nn.Module, *xs: Tensor) -> None:
    """A split backward of ``layer`` has its gradients in W, and they are torch's."""
    module = nn.ModuleList([layer])
    entered = [x.clone().requires_grad_(x.is_floating_point()) for x in xs]
    y = layer(*entered)
    back = torch.randn_like(y)
    y.backward(back)
    wanted = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    runner = StageRunner(module, function=lambda *given: layer(*given), split=True)
    assert deferrable(module) == [layer]
    found, = runner.forward(0, *xs)
    # Not to the bit: torch chooses a product's kernel also by whether its weight wants a gradient.
    assert torch.allclose(found, y, rtol=1e-13, atol=1e-13)
    for gradient, x in zip(runner.input_grad(0, back), entered, strict=True):
        assert (gradient is None) if x.grad is None else torch.allclose(gradient, x.grad, rtol=1e-13)  # type: ignore[arg-type]
    assert all(p.grad is None for p in layer.parameters())
    runner.weight_grad(0)
    for parameter, gradient in zip(layer.parameters(), wanted, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        if parameter.grad is not None and gradient is not None:
            assert torch.allclose(parameter.grad, gradient, rtol=1e-12, atol=1e-13)
            assert parameter.grad.is_contiguous() and parameter.grad.untyped_storage() != back.untyped_storage()
    runner.close()
    assert runner.held == (0, 0)


def test_weights_that_are_functions_of_parameters_wait_too() -> None:
    torch.manual_seed(0)
    named = {"a": weights(3, 4), "b": weights(5, 4)}
    layer = DeferredOperator(Product(), named, lambda a, b: (torch.cat([a, b.exp()]).t(),))
    same(layer, torch.randn(2, 6, 4, dtype=torch.float64))
    assert deferred_parameters(layer) == set(named.values())


def test_what_has_no_formula_is_run_again() -> None:
    torch.manual_seed(1)
    layer = DeferredOperator(Again(lambda xs, ws: torch.nn.functional.prelu(xs[0], ws[0]) * xs[1]), {"weight": weights(
        3)})
    same(layer, torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))


def test_the_gradient_that_is_handed_on_is_not_the_one_that_is_added_to() -> None:
    layer = DeferredOperator(Shift(), {"weight": weights(4, 3)})
    same(layer, torch.randn(4, 3, dtype=torch.float64))


def test_a_frozen_weight_has_no_gradient_and_a_trained_bias_has() -> None:
    layer = DeferredOperator(Product(), {"weight": weights(3, 2), "bias": weights(2)})
    layer.own[0].requires_grad_(False)
    runner = StageRunner(nn.Sequential(layer), split=True)
    runner.forward(0, torch.randn(4, 3, dtype=torch.float64))
    runner.input_grad(0, torch.ones(4, 2, dtype=torch.float64))
    runner.weight_grad(0)
    weight, bias = layer.own
    assert weight.grad is None and bias.grad is not None
    assert torch.equal(bias.grad, torch.full((2,), 4.0, dtype=torch.float64))
