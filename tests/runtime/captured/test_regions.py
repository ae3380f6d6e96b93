"""What a model computes without gradients, or under autocast, is cut, recomputed and seeded as all else is."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.captured.memory.test_stage_forward import by_stages, drawn
from tests.runtime.captured.test_cut import furthest, plain
from tests.support.captured_models import Case
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import CapturedCut, crossings
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.purity import Purity, draws, operator_name
from weft.runtime.train.moment import Seeded
from weft.runtime.train.stage import deferred_parameters


class Averaging(nn.Module):
    """A running mean that scales what follows, far behind; a teacher; a weight that is written to."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.mean: Tensor
        self.register_buffer("mean", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * h.mean(0))
            taught = self.second(h)
            h.mul_(2.0)
        h = self.second(h).tanh() * (1 / (1 + self.mean.clone().abs())) + taught
        return self.third(h).square().mean()  # type: ignore[no-any-return]


def test_what_is_written_without_gradients_is_written_once() -> None:
    torch.manual_seed(0)
    case = Case(Averaging().double(), (torch.randn(4, 8, dtype=torch.float64),), {}, None, None)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    _, wanted = plain(case)
    after = {key: value.clone() for key, value in case.model.state_dict().items()}
    case.model.load_state_dict(before)
    captured = Captured.of(case.model, case.args)
    purity = Purity(captured)
    allowed = [i for i, crossing in enumerate(crossings(captured, purity)) if i and crossing.refused is None]
    last = captured.calls.index(next(iter(captured.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.clone.default))))
    assert all(not 2 <= place <= last for place in allowed)
    with pytest.raises(CaptureError, match="writes in place"):
        CapturedCut(captured, [last])
    for decisions in (Decisions(), drawn(captured, purity, lambda: "recompute"),
                      drawn(captured, purity, lambda: "offload")):
        for split in (False, True):
            for place in allowed:
                case.model.load_state_dict(before)
                found = by_stages(case, captured, [place], decisions, split, micro_batches=1)
                assert furthest(found, wanted) <= 1e-12
                assert torch.equal(case.model.get_buffer("mean"), after["mean"])


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            noise = torch.randn_like(y)
        return y * noise  # type: ignore[no-any-return]


def test_what_is_drawn_without_gradients_has_a_seed() -> None:
    module = CapturedCut(Captured.of(Noise(), (torch.randn(2, 4),)), []).stages().modules[0]
    assert sum(isinstance(part, Seeded) for part in module.modules()) == 1


class Mixing(nn.Module):
    """Layers under autocast, with a part in full precision and one without gradients within, and dropout of nothing."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList([nn.Linear(width, width) for _ in range(4)]), nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.layers[:2]:
                x = torch.relu(layer(x))
            with torch.autocast("cpu", enabled=False):
                x = self.norm(self.layers[2](x.float()))
            with torch.no_grad():
                taught = self.layers[3](x)
            x = self.layers[3](x) @ self.layers[0].weight.t() + taught  # type: ignore[operator]
            x = self.out(x)
        return x.float().square().mean()


def test_what_is_under_autocast_is_cut_like_all_else() -> None:
    torch.manual_seed(0)
    case = Case(Mixing(), (torch.randn(4, 16),), {}, None, None)
    loss, wanted = plain(case)
    captured = Captured.of(case.model, case.args)
    purity = Purity(captured)
    looks = [node.meta["val"].dtype for node in captured.calls if operator_name(node) == "linear"]
    assert looks == [torch.bfloat16, torch.bfloat16, torch.float32, *[torch.bfloat16] * 3]
    assert torch.equal(captured.graph_module(case.args[0]), loss)
    allowed = [i for i, crossing in enumerate(crossings(captured, purity)) if i and crossing.refused is None]
    assert len(allowed) > 12
    for decisions in (Decisions(), drawn(captured, purity, lambda: "recompute")):
        for split in (False, True):
            for place in allowed[::3]:
                found = by_stages(case, captured, [place], decisions, split, micro_batches=1)
                assert furthest(found, wanted) <= 1e-6, (place, split)
    stage = CapturedCut(captured, []).stages().modules[0]
    waiting = {name for name, p in case.model.named_parameters() if p in deferred_parameters(stage)}
    assert {f"layers.{i}.weight" for i in (1, 2)} <= waiting and "out.bias" in waiting


def test_of_another_autocast_around_the_model_the_inner_one_holds() -> None:
    torch.manual_seed(0)
    model, x = Mixing(), torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model(x)
        captured = Captured.of(model, (x,))
        assert torch.equal(CapturedCut(captured, []).stages().modules[0](x)[0], wanted)
        assert torch.equal(CapturedCut(captured, []).stages(plain=True).modules[0](x)[0], wanted)


class Choosing(nn.Module):
    """A choice, which has graphs inside, under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y: Tensor = torch.cond(x.sum() > 0, self.one, self.two, (x,))
        return y


def test_what_has_graphs_inside_stays_in_one_under_autocast() -> None:
    torch.manual_seed(0)
    model, x = Choosing(), torch.ones(2, 4)
    captured = Captured.of(model, (x,))
    found = captured.graph_module(x)
    assert found.dtype == torch.bfloat16 and torch.equal(found, model(x))


class Recurrent(nn.Module):
    """``layer``, whose last states are read, and which begins from those that are given."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.into, self.layer = nn.Linear(6, 6), layer

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        y, last = self.layer(self.into(x), states if len(states) > 1 else states[0])
        ends = sum(each.square().sum() for each in ((last,) if isinstance(last, Tensor) else last))
        return (y * torch.arange(y.numel()).view_as(y)).mean() + ends  # type: ignore[no-any-return]


KINDS: dict[str, nn.RNNBase] = {
    "lstm": nn.LSTM(6, 5, 3, batch_first=True), "no biases": nn.LSTM(6, 5, 2, bias=False),
    "projected": nn.LSTM(6, 5, 3, proj_size=2, bidirectional=True), "gru": nn.GRU(6, 5, 3),
    "both ways": nn.GRU(6, 5, 2, bidirectional=True, batch_first=True), "rnn": nn.RNN(6, 5, 2)}


@pytest.mark.parametrize("name", KINDS)
def test_layers_are_cut_apart_and_give_the_same(name: str) -> None:
    torch.manual_seed(0)
    layer = KINDS[name]
    model, rows = Recurrent(layer).double(), layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or 5, 5] if isinstance(layer, nn.LSTM) else [5]
    states = [torch.randn(rows, 4, width, dtype=torch.float64) for width in widths]
    case = Case(model, (torch.randn(4, 4, 6, dtype=torch.float64), *states), {}, None, None)
    _, wanted = plain(case)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The tensor attribute")  # which torch has of layers' own rows of parameters
        captured = Captured.of(model, case.args)
    purity = Purity(captured)
    run = [i for i, node in enumerate(captured.calls) if operator_name(node) in ("lstm", "gru", "rnn_tanh")]
    assert len(run) == layer.num_layers
    allowed = {i for i, crossing in enumerate(crossings(captured, purity)) if i and crossing.refused is None}
    assert set(run) <= allowed
    for split in (False, True):
        assert furthest(by_stages(case, captured, [run[1]], Decisions(), split, micro_batches=1), wanted) <= 1e-12


def test_dropout_between_layers_is_an_operator_of_its_own() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.LSTM(6, 5, 3, dropout=0.5)), torch.randn(4, 4, 6)
    captured = Captured.of(model, (x,))
    assert [operator_name(node) for node in captured.calls if draws(node)] == ["dropout", "dropout"]
    stage = CapturedCut(captured, []).stages(plain=True).modules[0]
    torch.manual_seed(1)
    wanted = model(x)
    torch.manual_seed(1)
    for one, other in zip(stage(x), (wanted[0], *wanted[1]), strict=True):
        assert torch.equal(one, other)
