"""What an optimizer keeps moves by names to one with other parameters in another order.

States of schedulers and the like come back from JSON as they were.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR, SequentialLR

from weft.runtime.checkpoint.optimizer_state import (
    OptimizerState,
    OptimizerStateError,
    extra_of,
    give,
    give_extra,
    own_part,
    state_of,
)
from weft.runtime.interface.optim import AdamA


def parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(2)
    return {name: nn.Parameter(torch.randn(3)) for name in "abc"}


def names(named: dict[str, nn.Parameter]) -> dict[int, str]:
    return {id(parameter): name for name, parameter in named.items()}


def train(named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        for i, parameter in enumerate(named.values()):
            gradient = torch.full((3,), 1.0 + i + step)
            if isinstance(optimizer, AdamA):
                if optimizer.holds(parameter):
                    optimizer.fold(parameter, gradient)
            else:
                parameter.grad = gradient
        optimizer.step()


def moved(state: OptimizerState, optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> None:
    def tensors(name: str) -> dict[str, Tensor]:
        return {key: value.clone() for key, value in state.tensors[name].items()}

    give(optimizer, names(named), state.kind, state.numbers, state.options, tensors)


@pytest.mark.parametrize("make", [
    lambda ps: torch.optim.AdamW(ps, lr=0.1, betas=(0.8, 0.9)), lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(0.1)), lambda ps: AdamA(ps, lr=0.1)])
def test_training_goes_on_as_it_would_have(make: Any) -> None:
    whole, part = parameters(), parameters()
    one = make(list(whole.values()))
    train(whole, one, 2)
    state = state_of(one, names(whole))
    other = make([part["c"], part["a"]])
    other.param_groups[0]["lr"] *= 5
    with torch.no_grad():
        for name in "ac":
            part[name].copy_(whole[name])
    moved(state, other, part)
    train(whole, one, 2)
    train(part, other, 2)
    assert torch.equal(part["a"], whole["a"]) and torch.equal(part["c"], whole["c"])
    assert float(other.param_groups[0]["lr"]) == pytest.approx(0.1)
    assert type(other.param_groups[0].get("betas")) is type(one.param_groups[0].get("betas"))


def test_options_are_those_of_each_parameters_group() -> None:
    whole, part = parameters(), parameters()
    groups: list[dict[str, Any]] = [{"params": [whole["a"]], "lr": 0.5}, {"params": [whole["b"], whole["c"]]}]
    one = torch.optim.SGD(groups, lr=0.25)
    state = state_of(one, names(whole))
    other = torch.optim.SGD([{"params": [part["b"]]}, {"params": [part["a"]]}], lr=1.0)
    moved(state, other, part)
    assert [group["lr"] for group in other.param_groups] == [0.25, 0.5]
    with pytest.raises(OptimizerStateError, match="b is in one group with parameters that had other options"):
        moved(state, torch.optim.SGD([part["a"], part["b"]], lr=1.0), part)


def test_what_does_not_fit_is_refused() -> None:
    named = parameters()
    one = torch.optim.AdamW([named["a"]])
    state = state_of(one, names(named))
    with pytest.raises(OptimizerStateError, match="is of an optimizer AdamW, but SGD was given: give one like that"):
        moved(state, torch.optim.SGD(named.values()), named)
    with pytest.raises(OptimizerStateError, match="the state has nothing of b, which the optimizer updates"):
        moved(state, torch.optim.AdamW(named.values()), named)
    with pytest.raises(OptimizerStateError, match=r"a parameter of the shape \(7,\) that is none of this pipeline's"):
        state_of(torch.optim.SGD([nn.Parameter(torch.ones(7))]), names(named))
    one.param_groups[0]["call"] = print
    with pytest.raises(OptimizerStateError, match="the option call is builtin_function_or_method, which cannot be sa"):
        state_of(one, names(named))


def schedulers(lr: float) -> tuple[torch.optim.Optimizer, list[LRScheduler]]:
    """One of each kind, over one optimizer a kind."""
    def fresh() -> torch.optim.Optimizer:
        return torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=lr)

    row = fresh()
    return row, [MultiStepLR(fresh(), [2, 3, 3]), OneCycleLR(fresh(), 0.1, total_steps=9), SequentialLR(
        row, [CosineAnnealingLR(row, 4), MultiStepLR(row, [1])], milestones=[2])]


def rates(found: list[LRScheduler]) -> list[list[float]]:
    return [list(map(float, each.get_last_lr())) for each in found]


@pytest.mark.filterwarnings("ignore:.*optimizer.step.*", "ignore:.*epoch parameter.*")
def test_schedulers_go_on_from_what_json_has_of_them() -> None:
    _, first = schedulers(0.5)
    for _ in range(3):
        for each in first:
            each.step()
    saved = json.loads(json.dumps(extra_of({str(i): each for i, each in enumerate(first)})))
    _, second = schedulers(0.5)
    give_extra({str(i): each for i, each in enumerate(second)}, saved)
    assert rates(second) == rates(first)
    milestones: Any = second[0].state_dict()["milestones"]
    assert type(milestones).__name__ == "Counter" and milestones == {2: 1, 3: 2}
    assert [each.state_dict()["last_epoch"] for each in second] == [3, 3, 3]


def test_what_cannot_be_saved_or_given_is_said() -> None:
    class Held:
        def state_dict(self) -> dict[str, Any]:
            return {"rows": [object()]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("rows")

    with pytest.raises(OptimizerStateError, match=r"held\.rows is object, which cannot be saved"):
        extra_of({"held": Held()})
    with pytest.raises(OptimizerStateError, match="extra has int as 'epoch', which has no state_dict"):
        extra_of({"epoch": 3})
    with pytest.raises(OptimizerStateError, match=r"nothing was saved as 'held' \(there is nothing\)"):
        give_extra({"held": Held()}, {})
    with pytest.raises(OptimizerStateError, match="Held does not take what was saved as 'held': KeyError: 'rows'"):
        give_extra({"held": Held()}, {"held": {}})


def test_the_optimizer_that_accelerate_has_wrapped_is_what_is_saved() -> None:
    class AcceleratedOptimizer(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    plain = torch.optim.AdamW([nn.Parameter(torch.ones(2))])
    wrapped = AcceleratedOptimizer(plain)
    assert own_part(wrapped) is plain
    assert state_of(wrapped, {id(plain.param_groups[0]["params"][0]): "w"}).kind == "AdamW"
