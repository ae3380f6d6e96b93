"""One stage in this process: several inputs and outputs, recomputation, offload, full-precision masters, requests."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

from weft.runtime.train import stage
from weft.runtime.train.offload import CopyEngine
from weft.runtime.train.stage import Offloading, StageRunner

WIDTH, CPU = 4, torch.device("cpu")


class Cell(nn.Module):
    """Two inputs, two outputs, dropout: the second input goes on unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        y = self.drop(torch.tanh(self.one(x)))
        return self.two(y) * memory, memory


def run(micro_batches: int = 3, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and input gradients, then weight gradients, of overlapping micro-batches."""
    if options.get("offload"):
        options["offloading"] = Offloading(CopyEngine(CPU), options.get("offloaded"), options.get("beside", False))
    names = ("split", "recompute", "offloading")
    torch.manual_seed(0)
    module, results = Cell().double(), list[Tensor]()
    xs = torch.randn(micro_batches, 2, WIDTH, dtype=torch.float64)
    runner = StageRunner(module, **{name: options[name] for name in names if name in options})
    torch.manual_seed(1)
    for m in range(micro_batches):
        results += runner.forward(m, xs[m], xs[m] + 1)
    for m in reversed(range(micro_batches)):
        if options.get("offload"):
            runner.offload(m)
            runner.load(m)
        if options.get("recompute"):
            runner.recompute(m)
        backward = runner.input_grad if options.get("split") else runner.backward
        results += [g for g in backward(m, xs[m] - 1, xs[m] * 2) if g is not None]
        if options.get("split"):
            runner.weight_grad(m)
    runner.close()
    if options.get("offload"):
        options["offloading"].engine.close()
    assert runner.held == (0, 0) and not runner._repeats and not runner._shelves
    return results, [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("options", [
    {"split": True}, {"recompute": True}, {"offload": True}, {"recompute": True, "split": True},
    {"recompute": True, "offload": True}, {"offload": True, "split": True}, {"offload": True, "beside": True},
    {"offload": True, "beside": True, "recompute": True}, {"offload": True, "beside": True, "split": True},
    {"offload": True, "beside": True, "offloaded": ["one", "drop"]}, {"offload": True, "offloaded": ["two"]},
])
def test_every_way_to_run_a_stage_gives_the_same_numbers(options: dict[str, Any]) -> None:
    plain, plain_weights = run()
    found, found_weights = run(**options)
    assert len(found) == len(plain) == 3 * 4 and len(found_weights) == len(plain_weights) == 4
    for mine, wanted in zip([*found, *found_weights], [*plain, *plain_weights], strict=True):
        assert torch.allclose(mine, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("split", [False, True])
def test_a_stage_goes_backward_with_what_is_public_too(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run(split=split)
    monkeypatch.setattr(stage, "_ENGINE", None)
    for mine, theirs in zip(run(split=split), wanted, strict=True):
        assert len(mine) == len(theirs) > 0 and all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize("last", [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Identity()])
def test_a_stage_ends_in_edges_that_hold_its_graph(last: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.9 the edge of a node in Python, such as a deferred linear layer's, holds nothing."""
    edges = []

    def edge(y: Tensor) -> GradientEdge:
        edges.append(get_gradient_edge(y))
        return edges[-1]

    monkeypatch.setattr(stage, "get_gradient_edge", edge)
    runner, x = StageRunner(nn.Sequential(last), split=True), torch.ones(2, WIDTH)
    runner.forward(0, x)
    assert len(edges) == 1 and not isinstance(edges[0].node, BackwardCFunction)
    gradient, = runner.input_grad(0, x)
    runner.weight_grad(0)
    runner.close()
    wanted, = torch.autograd.grad(last(leaf := x.clone().requires_grad_()), leaf, x)
    assert gradient is not None and torch.allclose(gradient, wanted)


def test_an_output_that_nothing_depends_on_adds_nothing_and_constants_get_no_gradient() -> None:
    runner = StageRunner(Cell().double(), constant=(0,))
    x = torch.ones(2, WIDTH, dtype=torch.float64)
    runner.forward(0, x, x)
    assert [g is None for g in runner.backward(0, None, x)] == [True, False]
    runner.forward(0, x, torch.ones(2, WIDTH, dtype=torch.int64))
    assert runner.backward(0, x, None) == (None, None)


@pytest.mark.parametrize("split", [False, True])
def test_complex_numbers_have_gradients(split: bool) -> None:
    torch.manual_seed(0)
    module, x, g = nn.Linear(WIDTH, WIDTH, dtype=torch.complex128), *torch.randn(2, 3, WIDTH, dtype=torch.complex128)
    wanted = torch.autograd.grad(module(leaf := x.clone().requires_grad_()), [leaf, *module.parameters()], g)
    runner = StageRunner(module, split=split)
    runner.forward(0, x)
    found = (runner.input_grad if split else runner.backward)(0, g)
    if split:
        runner.weight_grad(0)
    runner.close()
    for mine, theirs in zip([*found, *(p.grad for p in module.parameters())], wanted, strict=True):
        assert mine is not None and torch.allclose(mine, theirs)


def test_a_gradient_of_another_shape_is_refused_and_no_gradient_at_all_changes_nothing() -> None:
    runner, x = StageRunner(nn.Linear(WIDTH, WIDTH)), torch.ones(2, WIDTH)
    runner.forward(0, x)
    with pytest.raises(RuntimeError, match="shape"):
        runner.backward(0, torch.ones(2, WIDTH + 1))
    runner.forward(0, x)
    assert runner.backward(0, None) == (None,) and runner.held == (0, 0)
    assert all(parameter.grad is None for parameter in runner.module.parameters())


def test_a_stage_without_anything_to_train_is_refused_where_the_plan_trains_it() -> None:
    runner = StageRunner(nn.Identity(), constant=(0,))
    with pytest.raises(ValueError, match="none of the stage's outputs depends on a parameter"):
        runner.forward(0, torch.ones(1))


def test_what_a_stage_neither_saves_nor_hands_on_is_not_kept() -> None:
    class Doubles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x + self.shift  # its backward needs neither x nor y

    runner, x = StageRunner(Doubles()), torch.ones(WIDTH)
    seen = [weakref.ref(x), *map(weakref.ref, runner.forward(0, x))]
    del x
    assert [ref() for ref in seen] == [None, None]
    assert runner.backward(0, torch.ones(WIDTH))[0] is not None


class Shown(nn.Module):
    """Gives a view of its weight, beside a product with it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.square(), self.weight.squeeze(1)


def test_a_gradient_does_not_lie_in_the_memory_of_a_message() -> None:
    """A parameter's gradient was the buffer that the next micro-batch's came in."""
    shown = Shown()
    runner = StageRunner(shown)
    message = torch.full((WIDTH,), 2.0)
    for micro_batch in range(3):
        runner.forward(micro_batch, torch.ones(WIDTH))
        runner.backward(micro_batch, torch.ones(WIDTH), message)
        message.fill_(2.0 + micro_batch + 1)
    assert shown.weight.grad is not None
    assert torch.equal(shown.weight.grad, torch.full((WIDTH, 1), 2.0 + 3.0 + 4.0))
