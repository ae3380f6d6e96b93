from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.expert_ranks import STEPS
from tests.support.ranks import finished, launch_forked
from weft.runtime.experts.layer import ExpertPlacement
from weft.runtime.experts.training import ExpertFamily, moved


def launched(folder: Path, ranks: int, part: str) -> dict[str, Any]:
    finished(ranks, "tests.support.expert_ranks", str(folder), part)
    every = [torch.load(folder / f"{part}-{rank}.pt") for rank in range(ranks)]
    assert all(other["adam switched"] == every[0]["adam switched"] for other in every)
    loaded: dict[str, Any] = every[0]
    return loaded


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launched(tmp_path_factory.mktemp("phases"), 2, "phases")


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["adam", "sgd", "adam on 4"])
def test_training_through_two_switches_is_training_without(found: dict[str, Any], rule: str, tmp_path: Path) -> None:
    if rule.endswith("4"):
        rule, found = "adam", launched(tmp_path, 4, "switches")
    assert [phase for _, phase, _ in found[f"{rule} switches"]] == [1, 2]
    assert len(found[f"{rule} switched"]) == STEPS
    for kind in ("replicated", "even"):
        assert found[f"{rule} switched"] == pytest.approx(found[f"{rule} {kind}"], rel=0, abs=1e-10)
    assert len(set(found[f"{rule} switched"])) == STEPS


@pytest.mark.slow
def test_a_training_that_ended_in_any_phase_goes_on_as_if_it_had_not(found: dict[str, Any]) -> None:
    resumed = [entry for name, entry in found.items() if name.startswith("resumed")]
    assert {phase for phase, _ in resumed} == {0, 1, 2}
    for _, losses in resumed:
        assert losses == pytest.approx(found["not ended"], rel=0, abs=1e-10)


@pytest.mark.slow
def test_ranks_that_were_killed_between_two_switches_go_on_in_new_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.expert_ranks", str(tmp_path)]
    codes = [end.code for end in launch_forked(2, [*command, "killed"])]
    assert -9 in codes and all(codes)  # one may have heard of the other's end
    ends = launch_forked(2, [*command, "taken_up"])
    assert [end.code for end in ends] == [0, 0], ends[0].errors
    before, found = torch.load(tmp_path / "before-0.pt"), torch.load(tmp_path / "taken_up-0.pt")
    assert found["phase"] == 1 and found["done"] == len(before) < STEPS
    assert before + found["losses"] == pytest.approx(found["not killed"], rel=0, abs=1e-10)


@pytest.mark.slow
def test_a_checkpoint_of_another_family_is_refused(found: dict[str, Any]) -> None:
    assert "the checkpoint is of another family of plans" in found["another family"]


EVEN = ExpertPlacement.even(4, 2)


@pytest.mark.parametrize(("phases", "borders", "said"), [
    ((EVEN, EVEN), (), "2 phases have 1 borders"), ((EVEN, EVEN, EVEN), (1.5, 2.0), "they must fall"),
    ((EVEN, EVEN), (5.0,), "a border is 5, but a token uses at most the 4 experts"),
    ((EVEN, ExpertPlacement.even(8, 2)), (2.0,), "different numbers of experts or ranks")])
def test_families_that_mean_nothing_are_refused(phases: tuple[ExpertPlacement, ...], borders: tuple[float, ...],
                                                said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ExpertFamily(phases, borders)


def test_only_what_is_not_there_moves_and_copies_take_turns() -> None:
    before = ExpertPlacement(4, ((0, 1), (2,), (3,)))
    after = ExpertPlacement(4, ((0, 1, 2, 3), (2,), (0,)))
    assert list(moved(before, after)) == [(0, 0, 2), (0, 1, 3), (2, 3, 0)]
    assert not list(moved(after, after))
    assert not list(moved(ExpertPlacement.replicated(8, 4), ExpertPlacement.even(8, 4)))
