"""A parameter of which only the type or the shape is read is nobody's to train, and is sent nowhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.captured.memory.test_stage_forward import by_stages
from tests.runtime.captured.test_cut import furthest, plain
from tests.support.captured_models import Case
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.metadata_reads import used_parameters
from weft.runtime.captured.purity import operator_name

LOOKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ones_like": lambda x, w: torch.ones_like(w)[0], "new_ones": lambda x, w: w.new_ones(4),
    "type_as": lambda x, w: x.type_as(w)[0], "to": lambda x, w: x.to(w)[0],
    "dtype": lambda x, w: torch.ones(4, dtype=w.dtype, device=w.device)}


class Looking(nn.Module):
    """What the last layer's weight looks like is asked for before the first layer."""

    def __init__(self, look: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.look = nn.Linear(4, 4), nn.Linear(4, 4), look
        self.asked, self.idle = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.look(x, self.two.weight) + self.look(x, self.asked)
        return (self.two(torch.relu(self.one(x))) + y).square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_is_no_tie_and_needs_no_gradient(name: str) -> None:
    torch.manual_seed(0)
    case = Case(Looking(LOOKS[name]).double(), (torch.randn(3, 4, dtype=torch.float64),), {}, None, None)
    _, wanted = plain(case)
    captured = Captured.of(case.model, case.args)
    used = used_parameters(case.model, case.args, {})
    assert captured.unread() == ["asked", "idle"] and used >= {"asked", "two.weight"} and "idle" not in used
    place = next(i for i, node in enumerate(captured.calls) if operator_name(node) == "relu")
    cut = CapturedCut(captured, [place])
    assert cut.ties() == [] and [len(each) for each in cut.parameters] == [2, 2]
    assert furthest(by_stages(case, captured, [place], Decisions(), False), wanted) <= 1e-15
