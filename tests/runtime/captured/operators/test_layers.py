"""Which operators of a captured graph become layers whose weight gradients can wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.runtime.captured.test_cut import by_stages, plain
from tests.support.captured_models import Case, Counts
from tests.support.examples import for_all
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.purity import Purity
from weft.runtime.train.deferred import DeferredOperator
from weft.runtime.train.stage import StageRunner, deferrable, deferred_parameters

functional = nn.functional


class Mixed(nn.Module):
    """A linear layer as transformers' GPT-2 writes it, experts, convolutions, a table, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.weight, self.bias = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.zeros(8))
        self.experts = nn.Parameter(torch.randn(2, 4, 4))
        self.first, self.second = nn.Conv1d(4, 4, 3, padding=1), nn.Conv2d(1, 2, 3, stride=2, bias=False)
        self.head = nn.Linear(10, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.table(ids))
        y = torch.addmm(self.bias, x.reshape(-1, 6), self.weight).reshape(len(ids), -1, 2, 4)
        y = torch.bmm(y.transpose(1, 2).flatten(2).reshape(2, -1, 4), self.experts).reshape(len(ids), -1, 4)
        y = self.first(y.transpose(1, 2))[:, None]
        return self.head(self.second(y).flatten(1)[:, :10])  # type: ignore[no-any-return]


def made() -> Case:
    torch.manual_seed(3)
    model = Mixed().double()
    return Case(model, (torch.randint(7, (4, 6)),), {}, lambda y, target: nn.functional.mse_loss(y, target),
                torch.randn(4, 1, dtype=torch.float64))


def waiting(model: nn.Module, captured: Captured, light: bool) -> set[str]:
    """The names of the parameters whose gradients wait."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)] for p in deferred_parameters(CapturedCut(captured, [],
                                                                  Purity(captured, light)).stages().modules[0])}


def test_products_convolutions_and_tables_defer_and_norms_only_when_asked() -> None:
    case = made()
    captured = Captured.of(case.model, case.args)
    module = CapturedCut(captured, []).stages().modules[0]
    every = {name for name, _ in case.model.named_parameters()}
    assert waiting(case.model, captured, light=False) == every - {"norm.weight", "norm.bias"}
    assert waiting(case.model, captured, light=True) == every
    assert sum(isinstance(layer, DeferredOperator) for layer in deferrable(module)) == 5


WIDTH = 4
Step = Callable[[Tensor, list[nn.Parameter]], Tensor]
#: What reads weights: their shapes, and how rows ``(batch, time, WIDTH)`` go through.
STEPS: dict[str, tuple[list[tuple[int, ...]], Step]] = {
    "linear": ([(4, 4), (4,)], lambda x, w: functional.linear(x, w[0], w[1])),
    "transposed": ([(4, 4)], lambda x, w: x @ w[0].t()),
    "swapped": ([(4, 4)], lambda x, w: torch.mm(x.flatten(0, 1), w[0].transpose(0, 1)).view_as(x)),
    "not swapped": ([(4, 4)], lambda x, w: torch.mm(x.flatten(0, 1), w[0].permute(0, 1)).view_as(x)),
    "addmm on a view": ([(16,), (4,)], lambda x, w: torch.addmm(w[1], x.flatten(0, 1), w[0].view(4, 4)).view_as(x)),
    "addmm, transposed": ([(4, 4), (4,)], lambda x, w: torch.addmm(w[1], x.flatten(0, 1), w[0].T).view_as(x)),
    "scaled addmm": ([(4, 4), (4,)], lambda x, w: torch.addmm(w[1], x.flatten(0, 1), w[0], alpha=0.5).view_as(x)),
    "cast": ([(4, 4)], lambda x, w: functional.linear(x.float(), w[0].float()).double()),
    "slices put together": ([(6, 4), (2, 4)], lambda x, w: functional.linear(x, torch.cat([w[0][1:3], w[1]]))),
    "chunks": ([(8, 4)], lambda x, w: functional.linear(functional.linear(x, w[0].chunk(2)[0]), w[0].chunk(2)[1])),
    "low rank": ([(4, 4), (4, 1), (1, 4)], lambda x, w: functional.linear(x, w[0] + 0.5 * (w[1] @ w[2]))),
    "own norm": ([(4, 4), (4, 1)], lambda x, w: functional.linear(x, w[1] * w[0] / w[0].norm(dim=1, keepdim=True))),
    "state": ([(4,)], lambda x, w: torch.exp(-x.abs() * torch.exp(w[0]))),
    "einsum": ([(4, 2, 2)], lambda x, w: torch.einsum("btd,dhk->bthk", x, w[0]).flatten(2)),
    "any einsum": ([(4, 4)], lambda x, w: torch.einsum("...d,dk->...k", x, w[0])),
    "experts": ([(3, 4, 4)], lambda x, w: torch.bmm(x, w[0])),
    "experts and biases": ([(3, 4, 4), (3, 1, 4)], lambda x, w: torch.baddbmm(w[1], x, w[0])),
    "from the left": ([(5, 5)], lambda x, w: torch.tanh(w[0] @ x)),
    "convolution": ([(4, 4, 3), (4,)], lambda x, w: functional.conv1d(x.mT, w[0], w[1], padding=1).mT),
    "same": ([(4, 2, 2)], lambda x, w: functional.conv1d(x.mT, w[0], padding="same", groups=2).mT),
    "up": ([(4, 4, 3)], lambda x, w: functional.conv_transpose1d(x.mT, w[0], padding=1).mT),
    "one sample": ([(3, 3, 1)], lambda x, w: x + functional.conv1d(x[:, 0], w[0])[:, None]),
    "depthwise": ([(4, 1, 3)], lambda x, w: functional.conv1d(x.mT, w[0], padding=2, groups=4)[..., :5].mT),
    "table": ([(7, 4)], lambda x, w: x + functional.embedding((x.detach().abs().sum(-1) * 3).long() % 7, w[0])),
    "places": ([(5, 4)], lambda x, w: x + functional.embedding(torch.arange(5), w[0])),
    "bag": ([(7, 4)], lambda x, w: x + functional.embedding_bag(
        (x.detach().abs()[..., 0] * 3).long() % 7, w[0], mode="sum")[:, None]),
    "layer norm": ([(4,), (4,)], lambda x, w: functional.layer_norm(x, (4,), w[0], w[1])),
    "rms norm": ([(4,)], lambda x, w: functional.rms_norm(x, (4,), w[0])),
    "group norm": ([(4,), (4,)], lambda x, w: functional.group_norm(x.mT, 2, w[0], w[1]).mT),
    "batch norm": ([(4,), (4,)], lambda x, w: functional.batch_norm(x.mT, None, None, w[0], w[1], True).mT),
    "instance norm": ([(4,), (4,)], lambda x, w: functional.instance_norm(x.mT, None, None, w[0], w[1]).mT),
    "scale and shift": ([(4,), (5, 1)], lambda x, w: x * w[0] + w[1]),
    "first token": ([(1, 1, 4)], lambda x, w: torch.cat([w[0].expand(3, -1, -1), x[:, 1:]], 1)),
    "gates": ([(4,), (1,)], lambda x, w: functional.prelu(torch.where(x > 0, x, x * w[0]), w[1])),
    "written": ([(4,)], lambda x, w: (x * 1.0).add_(w[0]).mul_(2.0)),
    "written later": ([(4,)], lambda x, w: (lambda y: y + (y - w[0]) * y.mul_(0.5))(x + 1.0)),
    "attended": ([(5, 4)], lambda x, w: functional.scaled_dot_product_attention(
        w[0].expand(3, -1, -1)[:, None], x[:, None], x[:, None])[:, 0])}


class Row(nn.Module):
    """Steps one after another, with what the first of them gives added before the last."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.own = nn.ModuleList([nn.ParameterList([nn.Parameter(0.7 * torch.randn(*shape) + 0.1)
                                                    for shape in STEPS[name][0]]) for name in names])

    def forward(self, x: Tensor) -> Tensor:
        early: list[Tensor] = []
        for name, weights in zip(self.names, self.own, strict=True):
            assert isinstance(weights, nn.ParameterList)
            x = STEPS[name][1](x, list(weights))
            early.append(x)
        return x + early[0]


def row(names: list[str], frozen: int = 0) -> Case:
    """A case of these steps, of whose parameters every ``frozen``-th is frozen."""
    torch.manual_seed(5)
    model = Row(names).double()
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(not frozen or i % frozen != 0)
    return Case(model, (torch.randn(3, 5, WIDTH, dtype=torch.float64),), {}, lambda y, target: (y * target).mean(),
                torch.randn(3, 5, WIDTH, dtype=torch.float64))


def held_against_the_model(case: Case, cut_at: float, light: bool, furthest_off: float = 1e-12) -> Captured:
    loss, wanted = plain(case)
    captured = Captured.of(case.model, case.args)
    forbidden = CapturedCut(captured, []).purity.forbidden()
    places = [i for i in range(1, len(captured.calls)) if i not in forbidden]
    for split in (False, True):
        at = places[int(cut_at * len(places)):][:1]
        found_loss, found = by_stages(case, captured, at, split, light)
        assert float(found_loss) == pytest.approx(float(loss), rel=furthest_off)
        # What is zero but for rounding, as the gradient of a bias before a batch norm, has no digits to compare.
        rounding = 1e-2 * max(float(gradient.norm()) for gradient in wanted.values())
        assert set(found) == set(wanted)
        for name, gradient in wanted.items():
            off = float((found[name] - gradient).norm())
            assert off <= furthest_off * max(float(gradient.norm()), rounding), name
    return captured


#: Whose gradients do not wait: it writes, or a later one writes into what it reads.
IN_I = {"written", "written later"}


@pytest.mark.parametrize("name", STEPS)
def test_each_kind_of_operator_waits(name: str) -> None:
    case = row([name, "linear"])
    captured = held_against_the_model(case, 2.0, True, 1e-6 if name == "cast" else 1e-12)
    every = {n for n, _ in case.model.named_parameters()}
    assert waiting(case.model, captured, True) == {n for n in every if name not in IN_I or n.startswith("own.1")}


@for_all(st.lists(st.sampled_from(sorted(STEPS.keys() - {"cast"})), min_size=2, max_size=5), st.floats(0, 0.99),
         st.booleans(), st.integers(0, 3), tries=15)
def test_rows_of_them_cut_anywhere_give_the_models_gradients(names: list[str], at: float, light: bool,
                                                             frozen: int) -> None:
    case = row(["linear", *names], frozen if frozen > 1 else 0)
    held_against_the_model(case, at, light)


def test_a_view_of_a_matrix_is_a_plain_linear_layer() -> None:
    for name, layers in {"transposed": 1, "swapped": 1, "addmm, transposed": 1, "not swapped": 0}.items():
        captured = Captured.of(row([name]).model, row([name]).args)
        module = CapturedCut(captured, []).stages().modules[0]
        assert sum(type(layer) is nn.Linear for layer in deferrable(module)) == layers
        assert len(deferrable(module)) == 1


def test_what_is_light_alone_is_left_in_the_graph() -> None:
    captured = Captured.of(row(["layer norm", "scale and shift", "first token"]).model, row(["linear"]).args)
    assert deferrable(CapturedCut(captured, []).stages().modules[0]) == []


def test_under_autocast_they_wait_only_where_w_computes_the_same() -> None:
    torch.manual_seed(3)
    model, ids = Mixed(), torch.randint(7, (4, 6))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids).float().square().mean()
        captured = Captured.of(model, (ids,))
    loss.backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    assert waiting(model, captured, light=False) == {"table.weight", "head.weight", "head.bias"}
    for split in (False, True):
        model.zero_grad()
        module = CapturedCut(captured, []).stages().modules[0]
        module.forward = torch.autocast("cpu", torch.bfloat16)(module.forward)
        runner = StageRunner(module, split=split, constant=[0])
        y = runner.forward(0, ids)[0]
        assert y.dtype == torch.bfloat16
        gradient = (2 * y.float() / y.numel()).to(y.dtype)
        (runner.input_grad if split else runner.backward)(0, gradient)
        if split:
            runner.weight_grad(0)
        runner.close()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and torch.equal(parameter.grad, wanted[name])  # type: ignore[arg-type]


class Spectrum(nn.Module):
    """Complex numbers times what real parameters make: a filter, products, a real scale."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.filter = nn.Linear(8, 8), nn.Parameter(torch.randn(5, 2))
        self.mix, self.other = nn.Parameter(torch.randn(5, 5, 2)), nn.Parameter(torch.randn(5, 5, 2))
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.rfft(self.into(x)) * torch.view_as_complex(self.filter) * self.scale
        y = y @ torch.view_as_complex(self.mix)
        found: Tensor = torch.fft.irfft(torch.einsum("bi,io->bo", y, torch.view_as_complex(self.other)), n=8)
        return found


class WrittenWeights(nn.Module):
    """What is made of a weight is written into before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        weight = self.out.weight.clone()
        weight[0] = 0.0
        weight.diagonal().fill_(1.0)
        return y @ weight  # type: ignore[no-any-return]


class NoNumbers(nn.Module):
    """A layer of no inputs, and one of no outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.none, self.empty = nn.Linear(8, 8), nn.Linear(0, 8), nn.Linear(8, 0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        return y + self.none(y[:, :0]) + self.empty(y).sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Spectrum, WrittenWeights, NoNumbers])
@pytest.mark.parametrize("light", [False, True])
def test_what_no_formula_fits_has_the_models_gradients(kind: type[nn.Module], light: bool) -> None:
    torch.manual_seed(1)
    x, target = torch.randn(4, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    case = Case(kind().double(), (x,), {}, nn.functional.mse_loss, target)
    held_against_the_model(case, 0.0, light)
    held_against_the_model(case, 0.6, light)


def test_a_layer_of_a_buffer_that_is_written_into_does_not_wait() -> None:
    captured = Captured.of(Counts(), (torch.randn(3, 4),))
    assert deferrable(CapturedCut(captured, []).stages().modules[0]) == []
