"""Pipelines inside a process group of the user's: on a mesh, in copies, beside each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.captured_models import made
from tests.support.mesh_ranks import EPS, PARTS, SIZE, STEPS
from tests.support.ranks import launch_forked

RANKS = 4
Ranks = dict[str, list[dict[str, Any]]]
RUN = [part for part in PARTS if part != "wrapped"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank found, by part."""
    folder = tmp_path_factory.mktemp("mesh")
    ended = launch_forked(RANKS, [sys.executable, "-m", "tests.support.mesh_ranks", str(folder), *RUN], timeout=400)
    assert [end.code for end in ended] == [0] * RANKS, ended
    return {part: [torch.load(folder / f"{part}.{rank}.pt") for rank in range(RANKS)] for part in RUN}


def plain(seeds: list[int], clip: float = float("inf")) -> tuple[list[float], list[dict[str, torch.Tensor]], Any]:
    """Losses, gradients and the last state of one process with whole batches."""
    model, losses, gradients = made("gpt", SIZE).model, [], []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPS)
    for seed in seeds:
        case = made("gpt", SIZE, seed)
        assert case.loss is not None
        loss = case.loss(model(*case.args), case.target)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        losses.append(loss.item())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients, model.state_dict()


def equal(state: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return state.keys() == wanted.keys() and all(
        torch.allclose(state[name], value, rtol=1e-9, atol=1e-12) for name, value in wanted.items())


@pytest.mark.slow
def test_two_copies_of_two_stages_train_as_one_process_on_the_whole_batch_bit_by_bit_again(found: Ranks) -> None:
    losses, gradients, state = plain(list(range(STEPS)), clip=0.5)
    for rank, each in enumerate(found["copies"]):
        first, again = each["first"], each["again"]
        assert first["losses"] == pytest.approx(losses, rel=1e-12) and equal(first["state"], state)
        assert first["stages"] == (rank // 2,)  # the mesh's first dimension is the pipeline
        for step, own in enumerate(first["gradients"]):
            for name, gradient in own.items():
                wanted = gradients[step][name]
                assert float((gradient - wanted).norm()) <= 1e-10 * max(float(wanted.norm()), 1e-6)
                assert torch.equal(gradient, again["gradients"][step][name])
        assert first["losses"] == again["losses"]
        assert all(torch.equal(first["state"][name], value) for name, value in again["state"].items())
        assert {*first["gradients"][0]} | {*found["copies"][(rank + 2) % 4]["first"]["gradients"][0]} == {*gradients[0]}
    files = found["copies"][0]["files"]  # the model once, by the first copy; random numbers of all four
    assert [sum(name.startswith(kind) for name in files) for kind in ("model-", "training-")] == [4, 8]


@pytest.mark.slow
def test_divided_optimizer_states_are_saved_whole_and_resumed_by_other_ranks(found: Ranks) -> None:
    losses, _, state = plain(list(range(STEPS)))
    for rank, each in enumerate(found["zero"]):
        assert each["losses"] == pytest.approx(losses, rel=1e-12) and equal(each["state"], state)
        assert each["held"] + found["zero"][(rank + 2) % 4]["held"] == each["whole"] and each["held"] > 0
        assert each["behind"] == 2
        for other in ("again", "alone"):
            assert each[other]["losses"] == pytest.approx(losses[2:], rel=1e-12) and equal(each[other]["state"], state)


@pytest.mark.slow
def test_pipelines_beside_each_other_on_some_ranks_and_on_all(found: Ranks) -> None:
    small, large = plain([0, 1]), plain([5, 6, 7])
    for each in found["beside"]:
        assert each["small"] == pytest.approx(small[0], rel=1e-12) and equal(each["small state"], small[2])
        assert [*each["everyone"], each["after"]] == pytest.approx(large[0], rel=1e-12)
        assert equal(each["state"], plain([5, 6])[2])


@pytest.mark.slow
def test_ranks_that_do_not_join_are_named_within_the_limit_and_the_group_goes_on(found: Ranks) -> None:
    for rank, each in enumerate(found["refused"]):
        assert each["goes on"] == 4.0
        assert rank == 3 or (f"rank {rank} waited 2 s for rank 3 to make the pipeline of the ranks 0, 1, 2, 3 too, in "
                             "vain") in each["said"]


@pytest.mark.slow
def test_a_wrapped_model_ends_all_ranks_with_one_sentence(tmp_path: Path) -> None:
    for end in launch_forked(2, [sys.executable, "-m", "tests.support.mesh_ranks", str(tmp_path), "wrapped"],
                             timeout=200):
        assert end.code == 2 and "the model is wrapped in DistributedDataParallel already" in end.errors
