"""A loss that cannot be called says where, and one that looks at its numbers is measured on some."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from tests.support.captured_models import made
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.division import Data, Goal, training_of
from weft.runtime.captured.loss import LossStage
from weft.runtime.measure.stage_feeds import feeds_of


def stage(loss: Any) -> LossStage:
    return LossStage(Several(), tree_flatten(0)[1], ["y"], loss, tree_flatten(0)[1])


class Several(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x,)


def mistaken(output: Tensor, target: Tensor) -> Tensor:
    return output.mean() + target.missing  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(("loss", "said"), [
    (mistaken, r"^loss cannot be called: mistaken raised AttributeError: .*, at test_loss.py:\d+ \(return output"),
    (lambda output: output.mean(), "loss cannot be called: <lambda> raised TypeError: .*takes 1 positional argument"),
    (lambda output, target: (output.mean(), None), r"<lambda>: the loss is \(sum, count\), but its count is None"),
    (lambda output, target: output, r"<lambda>: the loss has the shape \(2,\) and type torch.float32, it must be one"),
    (lambda output, target: (output > 0).sum(), "type torch.int64, it must be one floating-point number")])
def test_a_loss_that_is_none_is_one_sentence(loss: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said) as found:
        stage(loss)(torch.ones(2), torch.ones(2))
    assert "\n" not in str(found.value)


def test_a_loss_that_looks_at_its_numbers_is_measured() -> None:
    case, seen = made("towers", 2), list[float]()

    def looking(output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(output, target)
        seen.append(loss.item())
        return loss

    captured = Captured.of(case.model, case.args)
    names = [f"batch.{node.name}" for node in captured.inputs]
    named = dict(zip([*names, "target.0"], [*case.args, case.target], strict=True))
    training = training_of(CapturedCut(captured, []), [0], Goal(looking, tree_flatten(0)[1]), Data([named]))
    assert feeds_of(training, torch.device("cpu")).feed(0, training.stages[0]).output_bytes == 0 and len(seen) == 1
