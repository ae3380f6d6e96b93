from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.expert_ranks import STEPS
from tests.support.ranks import launch_forked
from weft.runtime.experts.layer import ExpertPlacement
from weft.runtime.experts.training import ExpertFamily


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("phases")
    ends = launch_forked(request.param, [sys.executable, "-m", "tests.support.expert_ranks", str(folder), "phases"],
                         timeout=600)
    assert [end.code for end in ends] == [0] * request.param, ends[0].errors
    every = [torch.load(folder / f"phases-{rank}.pt") for rank in range(request.param)]
    assert all(other["adam switched"] == every[0]["adam switched"] for other in every)
    loaded: dict[str, Any] = every[0]
    return loaded


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_training_through_two_switches_is_training_without(found: dict[str, Any], rule: str) -> None:
    assert [phase for _, phase, _ in found[f"{rule} switches"]] == [1, 2]
    assert len(found[f"{rule} switched"]) == STEPS
    for kind in ("replicated", "even"):
        assert found[f"{rule} switched"] == pytest.approx(found[f"{rule} {kind}"], rel=0, abs=1e-10)
    assert len(set(found[f"{rule} switched"])) == STEPS


def test_a_training_that_ended_in_any_phase_goes_on_as_if_it_had_not(found: dict[str, Any]) -> None:
    resumed = [entry for name, entry in found.items() if name.startswith("resumed")]
    assert {phase for phase, _ in resumed} == {0, 1, 2}
    for _, losses in resumed:
        assert losses == pytest.approx(found["not ended"], rel=0, abs=1e-10)


@pytest.mark.slow
def test_ranks_that_were_killed_between_two_switches_go_on_in_new_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.expert_ranks", str(tmp_path)]
    assert [end.code for end in launch_forked(2, [*command, "killed"], timeout=300)] == [-9, -9]
    ends = launch_forked(2, [*command, "taken_up"], timeout=300)
    assert [end.code for end in ends] == [0, 0], ends[0].errors
    before, found = torch.load(tmp_path / "before-0.pt"), torch.load(tmp_path / "taken_up-0.pt")
    assert found["phase"] == 1 and found["done"] == len(before) < STEPS
    assert before + found["losses"] == pytest.approx(found["not killed"], rel=0, abs=1e-10)


def test_a_checkpoint_of_another_family_is_refused(found: dict[str, Any]) -> None:
    assert "the checkpoint is of another family of plans" in found["another family"]


def test_families_that_mean_nothing_are_refused() -> None:
    even = ExpertPlacement.even(4, 2)
    with pytest.raises(ValueError, match="2 phases have 1 borders"):
        ExpertFamily((even, even), ())
    with pytest.raises(ValueError, match="they must fall"):
        ExpertFamily((even, even, even), (1.5, 2.0))
    with pytest.raises(ValueError, match="a border is 5, but a token uses at most the 4 experts"):
        ExpertFamily((even, even), (5.0,))
    with pytest.raises(ValueError, match="different numbers of experts or ranks"):
        ExpertFamily((even, ExpertPlacement.even(8, 2)), (2.0,))
