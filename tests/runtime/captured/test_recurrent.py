"""Recurrent modules of several layers are cut between their layers, and compute what they did."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.captured.memory.test_executed import by_stages
from tests.runtime.captured.test_cut import furthest, plain
from tests.support.captured_models import Case
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import Cut, crossings
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.purity import Purity, draws, operator_name


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
    stage = Cut(captured, []).stages(plain=True).modules[0]
    torch.manual_seed(1)
    wanted = model(x)
    torch.manual_seed(1)
    for one, other in zip(stage(x), (wanted[0], *wanted[1]), strict=True):
        assert torch.equal(one, other)
