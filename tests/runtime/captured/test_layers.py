"""Which operators of a captured graph become layers whose weight gradients can wait."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.runtime.captured.test_cut import by_stages, furthest, plain
from tests.support.captured_models import Case
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import Cut
from weft.runtime.train.deferred import DeferredOperator
from weft.runtime.train.stage import deferrable


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


def test_products_convolutions_and_tables_defer_and_norms_do_not() -> None:
    case = made()
    captured = Captured.of(case.model, case.args)
    module = Cut(captured, []).stages().modules[0]
    names = {id(p): name for name, p in case.model.named_parameters()}
    waiting = {names[id(p)] for layer in deferrable(module) for p in layer.parameters(recurse=False)}
    assert waiting == set(names.values()) - {"norm.weight", "norm.bias"}
    assert sum(isinstance(layer, DeferredOperator) for layer in deferrable(module)) == 5


def test_their_gradients_are_the_models() -> None:
    case = made()
    loss, wanted = plain(case)
    captured = Captured.of(case.model, case.args)
    for places in ([], [len(captured.calls) // 2]):
        for split in (False, True):
            found_loss, found = by_stages(case, captured, places, split)
            assert float(found_loss) == float(loss) and furthest(found, wanted) <= 1e-12
