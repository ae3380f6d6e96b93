"""Operators whose weight gradients wait: the same values and gradients as torch's own, only later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.train.deferred import Convolution, DeferredOperator, Product, Table
from weft.runtime.train.stage import StageRunner, deferrable


def weights(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64))


CASES: dict[str, tuple[Callable[[], DeferredOperator], tuple[int, ...]]] = {
    "matrix": (lambda: Product(weights(5, 3)), (2, 4, 5)),
    "addmm": (lambda: Product(weights(5, 3), weights(3)), (4, 5)),
    "experts": (lambda: Product(weights(2, 5, 3)), (2, 4, 5)),
    "conv1d": (lambda: Convolution(weights(4, 3, 2), weights(4), [1], [1], [1], 1), (2, 3, 7)),
    "conv2d": (lambda: Convolution(weights(4, 2, 3, 3), None, [2, 1], [1], [1], 2), (2, 4, 6, 6)),
    "conv3d": (lambda: Convolution(weights(2, 3, 2, 2, 2), weights(2), [1], [0], [1], 1), (2, 3, 4, 4, 4)),
    "table": (lambda: Table(weights(6, 3), 2), (2, 5))}


@pytest.mark.parametrize("name", CASES)
def test_deferred_gradients_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    layer = make()
    x = torch.randint(6, shape) if name == "table" else torch.randn(shape, dtype=torch.float64)
    module = nn.Sequential(layer)
    entered = x.clone().requires_grad_(x.is_floating_point())
    y = module(entered)
    back = torch.randn_like(y)
    y.backward(back)
    wanted: list[Tensor | None] = [p.grad for p in module.parameters()]
    module.zero_grad()
    runner = StageRunner(module, split=True)
    assert deferrable(module) == [layer]
    found, = runner.forward(0, x)
    assert torch.equal(found, y)
    gradient, = runner.input_grad(0, back)
    assert all(p.grad is None for p in module.parameters())
    assert (gradient is None) if entered.grad is None else torch.allclose(gradient, entered.grad, rtol=1e-13)  # type: ignore[arg-type]
    runner.weight_grad(0)
    for parameter, gradient in zip(module.parameters(), wanted, strict=True):
        assert parameter.grad is not None and gradient is not None
        assert torch.allclose(parameter.grad, gradient, rtol=1e-12, atol=1e-13)
    runner.close()
    assert runner.held == (0, 0)


def test_a_frozen_weight_has_no_gradient_and_a_trained_bias_has() -> None:
    layer = Product(weights(3, 2), weights(2))
    layer.weight.requires_grad_(False)
    runner = StageRunner(nn.Sequential(layer), split=True)
    runner.forward(0, torch.randn(4, 3, dtype=torch.float64))
    runner.input_grad(0, torch.ones(4, 2, dtype=torch.float64))
    runner.weight_grad(0)
    assert layer.weight.grad is None and layer.bias is not None and layer.bias.grad is not None
    assert torch.equal(layer.bias.grad, torch.full((2,), 4.0, dtype=torch.float64))
