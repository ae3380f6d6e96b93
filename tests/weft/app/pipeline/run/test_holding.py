"""What a script may do with a module, but not with a running pipeline."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from weft.app.pipeline.run.holding import INSTEAD, Holding


def test_what_only_a_module_has_is_named_with_what_there_is() -> None:
    pipe = Holding()
    for name, instead in INSTEAD.items():
        assert not hasattr(pipe, name)
        with pytest.raises(AttributeError, match=f"^a pipeline has no {name}: {instead}$".replace("(", r"\(").replace(
                ")", r"\)")):
            getattr(pipe, name)
    with pytest.raises(AttributeError, match=r"^a pipeline has no anything$"):
        pipe.anything  # noqa: B018


def test_gradients_are_dropped_as_by_an_optimizer() -> None:
    pipe = Holding()
    pipe._own = {"w": nn.Parameter(torch.ones(2))}
    pipe._own["w"].grad = torch.ones(2)
    assert [*pipe.gradients()] == ["w"]
    pipe.zero_grad()
    assert not pipe.gradients() and pipe._own["w"].grad is None


def test_a_running_pipeline_is_not_copied() -> None:
    calls: list[Any] = [copy.deepcopy, copy.copy, pickle.dumps, AveragedModel]
    for call in calls:
        with pytest.raises(TypeError, match=r"neither copied nor pickled: take pipe.state_dict\(\), or pipe.model"):
            call(Holding())
