"""A split backward of one stage, in this process."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from tests.support.stages import BATCH, WIDTH, Mix, gradients, largest_difference
from weft.runtime.train.stage import StageRunner


@pytest.mark.parametrize("first", [False, True])
def test_a_split_backward_gives_the_gradients_of_a_full_one(first: bool) -> None:
    torch.manual_seed(0)
    whole = Mix().double()
    split = copy.deepcopy(whole)
    constant = (0,) if first else ()
    one, two = StageRunner(whole, constant=constant), StageRunner(split, split=True, constant=constant)
    xs = [torch.randn(BATCH, 2, WIDTH, dtype=torch.float64) for _ in range(3)]
    for m, x in enumerate(xs):
        one.forward(m, x)
        two.forward(m, x)
    for m in (1, 0, 2):  # micro-batches overlap, and come back in another order
        gradient = torch.full_like(xs[m], m + 1.0)
        (x_gradient,), (same,) = one.backward(m, gradient), two.input_grad(m, gradient)
        assert (x_gradient is None) == (same is None) == first
        if x_gradient is not None and same is not None:
            assert torch.equal(x_gradient, same)
    assert split.twice.weight.grad is None  # deferred
    for m in (2, 1, 0):
        two.weight_grad(m)
    assert largest_difference(gradients(whole), gradients(split)) < 1e-13


def test_the_input_gradient_frees_the_graph_and_the_weight_gradient_the_rest() -> None:
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.exp(self.layer(x))  # exp keeps its output for its backward
            seen.append(weakref.ref(y))
            return y * y

    seen: list[weakref.ref[Tensor]] = []
    runner = StageRunner(Watched(), split=True)
    runner.forward(0, torch.ones(BATCH, WIDTH))
    assert seen[0]() is not None and runner.held == (1, 0)
    runner.input_grad(0, torch.ones(BATCH, WIDTH))
    assert seen[0]() is None and runner.held == (0, 1)
    runner.weight_grad(0)
    assert runner.held == (0, 0)


def test_a_closed_stage_gives_its_module_back() -> None:
    module = Mix()
    runner = StageRunner(module, split=True)
    runner.close()
    torch.autograd.backward(module(torch.ones(BATCH, WIDTH)).sum())
    assert module.twice.weight.grad is not None
