"""What an optimizer keeps moves by names to one with other parameters in another order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.checkpoint.optimizer_state import OptimizerState, OptimizerStateError, give, state_of
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
