"""Models that cannot be captured, or give no loss, are refused in one sentence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.loss import loss_of
from weft.runtime.captured.purity import Purity


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1) * 2


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def test_a_branch_on_a_value_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"^Branches cannot be exported: .*at test_captured.py:\d+ \(return x"):
        Captured.of(Branches(), (torch.ones(3),))


def test_a_model_that_writes_into_its_input_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"the operator add_ of the model \(Writes\) writes into the input 'x'"):
        Purity(Captured.of(Writes(), (torch.ones(3),)))


def test_parameters_that_nothing_reads_are_named_and_the_graph_is_known_by_its_digest() -> None:
    one, other = (Captured.of(Idle(), (torch.ones(size, 3),)) for size in (2, 3))
    assert one.unread() == ["idle.weight", "idle.bias"]
    assert one.digest != other.digest and one.digest == Captured.of(Idle(), (torch.ones(2, 3),)).digest


@pytest.mark.parametrize(("output", "said"), [
    (torch.ones(3), r"the model gives Tensor, in which the loss has the shape \(3,\)"),
    ((3, torch.ones(())), "the model gives tuple, in which the loss is int, it must be a tensor"),
    (torch.ones((), dtype=torch.int64), "it must be one floating-point number")])
def test_a_loss_that_is_no_scalar_is_refused(output: object, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        loss_of(output)


def test_the_models_own_loss_is_found() -> None:
    loss = torch.tensor(2.0)
    assert loss_of(loss) is loss and loss_of({"loss": loss}) is loss and loss_of((loss, torch.ones(3))) is loss
