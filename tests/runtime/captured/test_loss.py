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
from weft.runtime.captured.loss import LossStage, require_own
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


class Proxies(nn.Module):
    """A loss with a parameter of its own, or of the model's."""

    def __init__(self, own: nn.Parameter) -> None:
        super().__init__()
        self.own = own

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output * self.own * target).mean()


def test_a_parameter_that_only_the_loss_reads_is_its_own_or_refused() -> None:
    own = nn.Parameter(torch.ones(2))
    assert stage(Proxies(own))(own * 2, torch.ones(2))[0].requires_grad
    with pytest.raises(CaptureError, match=r"^<lambda>: the loss reads a parameter of the shape \(2,\): if it is the "
                                           "model's, compute what reads it in the model's forward, .*give a module"):
        stage(lambda output, target: (output * own * target).mean())(torch.ones(2), torch.ones(2))


def test_a_loss_has_nothing_of_the_model() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "loss": nn.ParameterDict({"own": nn.Parameter(torch.ones(2))})})
    require_own(model, nn.CrossEntropyLoss(torch.ones(3)))
    for parameter, said in ((model["a"].bias, "the loss has the model's a.bias: compute what reads it"),
                            (nn.Parameter(torch.ones(2)), "the model has loss.own, as own of the loss is called")):
        with pytest.raises(CaptureError, match=said):
            require_own(model, Proxies(parameter))  # type: ignore[arg-type]


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


class Beside(nn.Module):
    """A model whose result has, beside its loss, what it does not depend on; or does, by an operator in place."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.first, self.other, self.last, self.writes = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), writes

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.first(x).tanh()
        other = self.other(x).sigmoid()
        if self.writes:
            x.mul_(other)
        return {"loss": self.last(x).mean(), "other": other}


def crossing(model: nn.Module) -> tuple[CapturedCut, set[str]]:
    """``model`` cut before the operator of its part ``last``, and the values that pass."""
    captured = Captured.of(model, (torch.ones(2, 4),))
    place = next(i for i, node in enumerate(captured.calls) if "last" in str(node.meta["nn_module_stack"]))
    cut = CapturedCut(captured, [place])
    return cut, {node.name for node in cut.given[0]}


@pytest.mark.parametrize("writes", [False, True])
def test_a_result_beside_the_models_own_loss_is_sent_no_gradient(writes: bool) -> None:
    cut, names = crossing(Beside(writes))
    own = training_of(cut, [0], Goal(None, None), Data()).untrained
    other = {name for name in names if "sigmoid" in name}
    assert len(names) == 2 and own == (set() if writes else other)
    theirs = training_of(cut, [0], Goal(mistaken, tree_flatten(0)[1]), Data())  # it may read any result
    assert not theirs.untrained and theirs.doubtful == own


class Looked(Beside):
    """A model whose last part reads what the first gives beside, without a gradient."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.first(x).tanh()
        return {"loss": self.last(x + self.other(x).sigmoid().detach()).mean()}


def test_what_is_read_without_a_gradient_has_none() -> None:
    cut, names = crossing(Looked(writes=False))
    for goal in (Goal(None, None), Goal(mistaken, tree_flatten(0)[1])):
        found = training_of(cut, [0], goal, Data())
        assert names >= {*found.untrained} and len(names - {*found.untrained}) == 1
