"""Programs and trainings on two and three gloo ranks, held against the interpreter and against plain optimizers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.communication_programs import CHUNKS
from tests.support.communication_ranks import RULES, STEPS
from tests.support.ranks import launch_forked

pytestmark = pytest.mark.slow

TOLERANCE = 1e-12


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank found; rank 1 ends on purpose, in the last check."""
    folder = tmp_path_factory.mktemp("communication")
    ended = launch_forked(request.param, [sys.executable, "-m", "tests.support.communication_ranks", str(folder)])
    assert [one.code for one in ended] == [3 if rank == 1 else 0 for rank in range(request.param)], ended[0].errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


def worst(rows: Mapping[str, Any], key: str) -> float:
    return max(float(row[key]) for row in rows.values())


def test_every_program_computes_what_the_interpreter_does(found: list[Any]) -> None:
    for one in found:
        assert len(one["chunks"]) >= 2 * len(CHUNKS) + 14 and worst(one["chunks"], "worst") < TOLERANCE


def test_what_the_search_chose_runs_in_the_order_of_its_schedule(found: list[Any]) -> None:
    for one in found:
        assert len(one["searched"]) == (2 if len(found) == 2 else 1) and worst(one["searched"], "worst") < TOLERANCE
        assert any(row["chunks"] > 1 for row in one["searched"].values())


def test_two_ranks_are_equal_bit_for_bit_in_any_chunks_and_programs(found: list[Any]) -> None:
    """But where the matmul is in chunks: then its rows may be summed in another order. Three add in another order."""
    for one in found:
        rows = {name: row for name, row in one["chunks"].items() if not name.startswith("product in")}
        assert len(rows) == len(one["chunks"]) - len(CHUNKS)
        assert len(found) > 2 or all(row["same"] for row in rows.values())


def test_sliced_states_give_the_same_weights(found: list[Any]) -> None:
    for one in found:
        assert worst(one["optimizer_programs"], "worst") < TOLERANCE
        for row in one["optimizer_programs"].values():
            assert row["difference"] < TOLERANCE and row["state_bytes"] * len(found) == row["whole_bytes"]


def test_what_a_group_sends_the_next_one_has(found: list[Any]) -> None:
    if len(found) == 2:
        assert len(found[0]["pipelines"]) >= 12 + 2
        for one, held in zip(found, ([], ["out"]), strict=True):
            assert worst(one["pipelines"], "worst") < TOLERANCE
            assert all(row.get("held", held) == held for row in one["pipelines"].values())


@pytest.mark.parametrize("rule", RULES)
def test_a_module_is_trained_to_the_weights_of_one_process(found: list[Any], rule: str) -> None:
    for one in found:
        row = one["training"][rule]
        assert row["difference"] < TOLERANCE and row["moved"] > 1e-3
        padding = 2 * 8 * len(found) * row["buckets"]
        assert row["whole_bytes"] <= row["state_bytes"] * len(found) <= row["whole_bytes"] + padding
        if rule != "lamb":
            assert row["moments"] < TOLERANCE
            assert row["steps"] == {**dict.fromkeys(row["steps"], 0), **row["plain_steps"]}
            assert row["steps"]["rare.weight"] == STEPS // 2 and row["steps"]["never.weight"] == 0


def test_after_a_backward_that_failed_on_one_rank_all_go_on_from_no_gradients(found: list[Any]) -> None:
    assert all(one["recovered"] == 0.0 for one in found)


def test_what_cannot_be_is_one_sentence_on_every_rank(found: list[Any]) -> None:
    ranks = len(found)
    said = {name: [one["mistakes"].get(name) for one in found] for name in found[0]["mistakes"]}
    for name, start in (("different programs", "ValueError: the program must be the same on all ranks, but it is "
                                               "tensor parallel, "),
                        ("ranks", f"ValueError: the program is for {ranks + 1} ranks, but the process group has "
                                  f"{ranks}"),
                        ("different models", "ValueError: the parameter 'first.weight' must be the same on all ranks, "
                                             "but it is of shape (7, 6), torch.float64 on rank 0 and not there on "
                                             "rank 1")):
        assert all(sentence.startswith(start) for sentence in said[name]), said[name]
    wrong = "the replicated tensor 'r' of shape (4, 6) and 8 bytes an element is given in shape (3, 6)"
    assert said["shape"][1] == f"ValueError: {wrong}"
    assert said["shape"][0] == f"RankError: rank 1 failed in the program: {wrong}"
    assert all(wrong in sentence and "make it anew" in sentence for sentence in said["after"])


def test_a_rank_that_fails_in_its_training_ends_the_others_step(found: list[Any]) -> None:
    for rank, one in enumerate(found):
        kind = "ValueError: " if rank == 1 else "RankError: rank 1 failed in the backward: "
        assert one["mistakes"]["twice"].startswith(f"{kind}the gradient of 'last.bias' came a second time before")


def test_a_rank_that_is_late_or_gone_leaves_no_other_waiting(found: list[Any]) -> None:
    others = [one["mistakes"] for rank, one in enumerate(found) if rank != 1]
    for said in others:
        assert "waited 3 s for the other ranks in sum" in said["late"] and said["late"].startswith("RankError: ")
        assert "was left alone in sum: rank 1's process has ended" in said["gone"]
