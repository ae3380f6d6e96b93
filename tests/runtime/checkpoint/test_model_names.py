"""Tensors of a model by all their names, held against what a state has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.captured_models import GPT
from weft.runtime.checkpoint.model_names import fitted, named_tensors
from weft.runtime.checkpoint.weights import WeightsError, weights_of


def test_tied_parameters_are_one_with_two_names_and_passing_buffers_are_not_saved() -> None:
    model = GPT(1)
    model.register_buffer("angles", torch.ones(2), persistent=False)
    model.register_buffer("counted", torch.ones(2))
    found = {item.name: item for item in named_tensors(model)}
    assert found["words.weight"].names == ("words.weight", "head.weight") and "head.weight" not in found
    assert not found["angles"].is_saved and found["counted"].is_saved
    assert {name for item in found.values() if item.is_saved for name in item.names} == set(model.state_dict())


def test_a_state_is_held_against_the_model() -> None:
    model = GPT(1)
    tensors, state = named_tensors(model), dict(model.state_dict())
    del state["words.weight"]  # its other name is there
    assert fitted(weights_of(state), tensors, "GPT")["words.weight"] == "head.weight"
    with pytest.raises(WeightsError, match="the state dict has extra, which GPT does not have: give the state of this"):
        fitted(weights_of({**state, "extra": torch.ones(1)}), tensors, "GPT")
    fitted(weights_of({**state, "extra": torch.ones(1)}), tensors, "GPT", strict=False)
    with pytest.raises(WeightsError, match=r"norm\.bias has the shape \(3\), but in GPT it has \(16\)"):
        fitted(weights_of({**state, "norm.bias": torch.ones(3)}), tensors, "GPT")
    del state["norm.bias"]
    with pytest.raises(WeightsError, match=r"the state dict has no norm\.bias: give the whole state of GPT"):
        fitted(weights_of(state), tensors, "GPT", strict=False)
    assert isinstance(model.head, nn.Linear)
