"""Which parameters several stages hold together, as one rank knows it and as all ranks do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weft.runtime import SessionError, Training
from weft.runtime.train.tied_parameters import HeldTies, holding, shared_stages


def training(stages: dict[int, nn.Module], *ties: dict[int, str]) -> Training:
    return Training(stages, [], lambda step, m: torch.ones(1), ties=ties)


def test_a_tie_is_of_its_stages_and_of_those_that_hold_the_same_object() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert holding(training({0: one, 4: one}, {0: "weight", 7: "weight"})) == HeldTies([(0, 4, 7)], [(0, 4)])
    assert holding(training({0: one, 4: other}, {0: "weight", 7: "weight"})) == HeldTies([(0, 7)], [])


def test_an_object_that_is_not_trained_is_not_shared() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert holding(training({0: frozen, 1: frozen})) == HeldTies([], [])


def test_ranks_know_together_what_each_knows_in_part() -> None:
    assert shared_stages([HeldTies([(0, 4, 7)], [(1, 2)]), HeldTies([(0, 5, 7)], [(3, 6)])]) == [
        (0, 4, 5, 7), (1, 2), (3, 6)]


def test_a_tie_of_a_parameter_that_is_not_there_is_refused() -> None:
    with pytest.raises(SessionError, match="ties name the parameter 'ghost' of stage 0, whose module has weight, bias"):
        holding(training({0: nn.Linear(2, 2)}, {0: "ghost", 1: "weight"}))
