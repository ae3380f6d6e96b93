"""Stages that take whole numbers are measured on those that the model computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.app.pipeline.planning.whole_numbers import whole_numbers
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import BATCH, CapturedCut
from weft.runtime.captured.division import Data, Goal, training_of
from weft.runtime.measure.measure_stages import measure_stages


class Sorted(nn.Module):
    """Rows in the order that one part says and the next one takes back: of what is no order, that makes places that
    nothing has written."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        order = y[:, 0].argsort()
        z = self.inner(y[order])
        back = torch.full_like(order, 10**9)
        back[order] = torch.arange(len(order))
        return self.out(z[back]).square().mean()  # type: ignore[no-any-return]


def test_an_order_that_a_stage_takes_is_one() -> None:
    torch.manual_seed(0)
    model, x = Sorted(), torch.randn(6, 4)
    captured = Captured.of(model, (x,))
    found = whole_numbers(captured, [x])
    order = next(value for name, value in found.items() if name.startswith("argsort"))
    assert torch.equal(order, model.into(x)[:, 0].argsort())
    place = next(i for i, node in enumerate(captured.calls) if node.name == "linear_1")
    training = training_of(CapturedCut(captured, [place]), (0, 1), Goal(None, None), Data([{BATCH + "x": x, **found}]))
    assert [cost.stage for cost in measure_stages(training, repeats=1)] == [0, 1]
