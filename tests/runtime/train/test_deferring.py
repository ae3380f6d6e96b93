"""Layers of modules by hand: which of them wait, and how others are registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.train.test_deferred import same
from weft.runtime import Formula, register_deferred
from weft.runtime.train import deferring
from weft.runtime.train.stage import StageRunner, deferrable, deferred_parameters


@pytest.fixture(autouse=True)
def registered_for_a_test_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(deferring, "_MAKERS", dict(deferring._MAKERS))
    yield


#: Layer, shapes of its inputs, whether it is deferred without being registered.
LAYERS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], bool]] = {
    "linear": (lambda: nn.Linear(4, 3), [(2, 5, 4)], True),
    "conv1d": (lambda: nn.Conv1d(4, 3, 2, stride=2), [(2, 4, 7)], True),
    "conv2d, same": (lambda: nn.Conv2d(4, 4, (2, 3), padding="same", groups=2, bias=False), [(2, 4, 5, 6)], True),
    "conv1d, one sample": (lambda: nn.Conv1d(4, 3, 2), [(4, 7)], True),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), [(1, 2, 3, 4, 3)], True),
    "transposed": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, output_padding=1), [(2, 3, 4, 4)], True),
    "layer norm": (lambda: nn.LayerNorm((5, 4)), [(2, 5, 4)], False),
    "rms norm": (lambda: nn.RMSNorm(4), [(2, 5, 4)], False),
    "group norm": (lambda: nn.GroupNorm(2, 4), [(2, 4, 5)], False),
    "two inputs": (lambda: nn.Bilinear(4, 3, 2), [(5, 4), (5, 3)], False),
    "layers inside": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.PReLU()), [(5, 4)], False)}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_wait_when_they_are_registered(name: str) -> None:
    torch.manual_seed(0)
    make, shapes, known = LAYERS[name]
    layer = make().double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    assert (deferrable(layer) == [layer]) == known
    if not known:
        register_deferred(type(layer))
    same(layer, *(torch.randn(shape, dtype=torch.float64) for shape in shapes))


@pytest.mark.parametrize("name", ["linear", "conv1d", "transposed", "layer norm", "group norm"])
def test_under_autocast_they_compute_what_the_layer_does(name: str) -> None:
    torch.manual_seed(0)
    make, shapes, _ = LAYERS[name]
    layer, x = make(), torch.randn(shapes[0])
    register_deferred(type(layer))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = layer(x)
        runner = StageRunner(nn.ModuleList([layer]), function=lambda x: layer(x), split=True)
        found, = runner.forward(0, x)
    assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    wanted.sum().backward()
    gradients = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    runner.input_grad(0, torch.ones_like(found))
    runner.weight_grad(0)
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        assert parameter.grad is not None and gradient is not None
        assert torch.allclose(parameter.grad, gradient, rtol=0.02, atol=0.02 * float(gradient.abs().max()))
    runner.close()


def test_a_table_waits_but_not_one_that_is_changed_in_its_forward() -> None:
    torch.manual_seed(0)
    same(nn.Embedding(6, 3, padding_idx=1).double(), torch.randint(6, (2, 5)))
    for settings in ({"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}):
        assert deferrable(nn.Embedding(6, 3, **settings)) == []


class Diagonal(nn.Module):
    """The example of :func:`register_deferred`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, dtype=torch.float64))

    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        return x * self.weight * (2.0 if twice else 1.0)


class DiagonalFormula(Formula):
    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return xs[0] * weights[0], (xs[0],)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        return [(gradient * kept[0]).flatten(0, -2).sum(0)]


def test_a_kind_of_ones_own_has_a_formula_of_ones_own() -> None:
    register_deferred(Diagonal, lambda layer: DiagonalFormula())
    same(Diagonal(3), torch.randn(2, 4, 3, dtype=torch.float64))


def test_a_call_that_the_formula_does_not_know_has_its_gradient_in_i() -> None:
    register_deferred(Diagonal)
    layer, x = Diagonal(3), torch.randn(4, 3, dtype=torch.float64)
    runner = StageRunner(layer, function=lambda x: layer(x, twice=True), split=True)
    runner.forward(0, x)
    runner.input_grad(0, torch.ones(4, 3, dtype=torch.float64))
    assert layer.weight.grad is not None and torch.allclose(layer.weight.grad, 2 * x.sum(0))
    runner.weight_grad(0)
    assert torch.allclose(layer.weight.grad, 2 * x.sum(0))


def test_a_maker_may_say_that_a_layer_cannot_wait_and_subclasses_are_not_taken() -> None:
    class Other(Diagonal):
        pass

    register_deferred(Diagonal, lambda layer: None if len(layer.weight) == 2 else DiagonalFormula())
    both = nn.ModuleList([Diagonal(2), Diagonal(3), Other(3)])
    assert deferrable(both) == [both[1]] and deferred_parameters(both) == set(both[1].parameters())
    with pytest.raises(TypeError, match=r"'diagonal' is no type of torch\.nn\.Module: give the layer's class"):
        register_deferred("diagonal")  # type: ignore[arg-type]


def test_a_weight_that_a_hook_makes_does_not_wait() -> None:
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(4, 3))
    assert type(layer) is nn.Linear and deferrable(layer) == []


def test_hooks_are_run_once_and_the_layer_is_given_back() -> None:
    register_deferred(nn.Bilinear)
    layer, seen = nn.Bilinear(2, 2, 2), list[int]()
    layer.register_forward_hook(lambda *_: seen.append(1))
    runner = StageRunner(layer, split=True)
    runner.forward(0, torch.ones(3, 2), torch.ones(3, 2))
    runner.input_grad(0, torch.ones(3, 2))
    runner.weight_grad(0)
    runner.close()
    assert seen == [1] and "forward" not in vars(layer) and layer.weight.grad is not None
