"""Pipelines inside a process group of the user's: on a mesh, in copies, beside each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import finished, found_by_parts, launch_forked, made
from tests.support.mesh_ranks import EPS, PARTS, SIZE, SLOWER, STEPS, OwnHead

pytestmark = pytest.mark.slow

RANKS = 4
Ranks = dict[str, list[dict[str, Any]]]
RUN = [part for part in PARTS if part not in ("wrapped", "degrees")]
#: Losses, gradients and the last state of one process.
Plain = tuple[list[float], list[dict[str, torch.Tensor]], Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank found, by part."""
    return found_by_parts(RANKS, "tests.support.mesh_ranks", tmp_path_factory.mktemp("mesh"), RUN)


def plain(seeds: list[int], clip: float = float("inf"), slower: float = 1.0) -> Plain:
    """Losses, gradients and the last state of one process with whole batches; after two, its rate is ``slower``."""
    model, losses, gradients = made("short", SIZE).model, [], []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPS)
    for seed in seeds:
        case = made("short", SIZE, seed)
        assert case.loss is not None
        loss = case.loss(model(*case.args), case.target)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        losses.append(loss.item())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
        if len(losses) == 2:
            optimizer.param_groups[0]["lr"] *= slower
    return losses, gradients, model.state_dict()


def equal(state: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return state.keys() == wanted.keys() and all(
        torch.allclose(state[name], value, rtol=1e-9, atol=1e-12) for name, value in wanted.items())


def assert_trained_as(wanted: Plain, first: dict[str, Any], again: dict[str, Any]) -> None:
    """A rank's losses, gradients and state are those of one process, and to the bit those of the same run again."""
    losses, gradients, state = wanted
    assert first["losses"] == pytest.approx(losses, rel=1e-12) and equal(first["state"], state)
    for step, own in enumerate(first["gradients"]):
        for name, gradient in own.items():
            whole = gradients[step][name]
            assert float((gradient - whole).norm()) <= 1e-10 * max(float(whole.norm()), 1e-6)
            assert torch.equal(gradient, again["gradients"][step][name])
    assert first["losses"] == again["losses"]
    assert all(torch.equal(first["state"][name], value) for name, value in again["state"].items())


def test_two_copies_of_two_stages_train_as_one_process_on_the_whole_batch_bit_by_bit_again(found: Ranks) -> None:
    wanted = plain(list(range(STEPS)), clip=0.5)
    for rank, each in enumerate(found["copies"]):
        first, again = each["first"], each["again"]
        assert_trained_as(wanted, first, again)
        assert first["stages"] == (rank // 2,)  # the mesh's first dimension is the pipeline
        assert {*first["gradients"][0]} | {*found["copies"][(rank + 2) % 4]["first"]["gradients"][0]} == {*wanted[1][0]}
    files = found["copies"][0]["files"]  # the model once, by the first copy; random numbers of all four
    assert [sum(name.startswith(kind) for name in files) for kind in ("model-", "training-")] == [4, 8]


def test_divided_optimizer_states_are_saved_whole_and_resumed_by_other_ranks(found: Ranks) -> None:
    losses, _, state = plain(list(range(STEPS)), slower=SLOWER)
    for rank, each in enumerate(found["zero"]):
        assert each["losses"] == pytest.approx(losses, rel=1e-12) and equal(each["state"], state)
        assert each["held"] + found["zero"][(rank + 2) % 4]["held"] == each["whole"] and each["held"] > 0
        assert each["behind"] == 2
        for other in ("again", "alone"):
            assert each[other]["losses"] == pytest.approx(losses[2:], rel=1e-12) and equal(each[other]["state"], state)


def test_divided_parameters_train_as_one_process_bit_by_bit_again_and_go_on_with_other_cuts(found: Ranks) -> None:
    wanted = plain(list(range(STEPS)), clip=0.5)
    for rank, each in enumerate(found["sharded"]):
        assert_trained_as(wanted, each["first"], each["again"])
        other = found["sharded"][(rank + 2) % 4]
        assert each["held"] + other["held"] == each["whole"] == each["part"] and each["resting"] == 0
        for later in ("other cut", "alone"):
            assert each[later]["losses"] == pytest.approx(wanted[0][2:], rel=1e-12)
            assert equal(each[later]["state"], wanted[2])
    model, case = made("short", SIZE).model, made("short", SIZE)
    model.load_state_dict(wanted[2])
    model.eval()
    assert case.loss is not None
    assert found["sharded"][0]["first"]["evaluated"] == pytest.approx(case.loss(model(*case.args), case.target).item())


def test_ranks_with_shares_train_as_one_process_whole_or_split_backwards_and_dropout_too(found: Ranks) -> None:
    wanted = plain(list(range(STEPS)), clip=0.5)
    for each in found["tensor"]:
        assert_trained_as(wanted, each["first"], each["again"])
        held = each["first"]["held"]
        assert all(own * 2 == whole for name, (own, whole) in held.items() if name.endswith("wide.weight"))
        assert each["first"]["evaluated"] == each["again"]["evaluated"]
        assert each["alone"]["losses"] == pytest.approx(wanted[0][2:], rel=1e-12)
        assert equal(each["alone"]["state"], wanted[2])
        with_shares, without = each["heads"]
        assert with_shares == pytest.approx(without, rel=1e-12)


def test_ranks_with_shares_train_a_loss_too_and_clip_both_in_every_type(found: Ranks) -> None:
    model = made("short", SIZE).model
    torch.manual_seed(3)
    loss = OwnHead().double()
    losses, norms, own = [], [], [*model.parameters(), *loss.parameters()]
    optimizer = torch.optim.AdamW(own, lr=1e-2, eps=EPS)
    for seed in range(2):
        case = made("short", SIZE, seed)
        value = loss(model(*case.args), case.target)
        value.backward()
        losses.append(value.item())
        norms.append(float(torch.nn.utils.clip_grad_norm_(own, 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    state = {**model.state_dict(), **{f"loss.{name}": value for name, value in loss.state_dict().items()}}
    for each in found["types"]:
        for name, (told, clipped_by, after) in each.items():
            assert told == pytest.approx(losses, rel=1e-12 if name == "plain" else 1e-2), name
            assert clipped_by == pytest.approx(norms, rel=1e-12 if name == "plain" else 2e-2), name
            assert name != "plain" or equal(after, state)


def test_copies_shares_and_stages_at_once_train_as_one_process_bit_by_bit_again(tmp_path: Path) -> None:
    wanted = plain(list(range(STEPS)), clip=0.5)
    finished(8, "tests.support.mesh_ranks", str(tmp_path), "degrees", timeout=400)
    for rank in range(8):
        each = torch.load(tmp_path / f"degrees.{rank}.pt")
        assert_trained_as(wanted, each["first"], each["again"])
        assert each["first"]["place"] == (rank // 4, rank // 2 % 2, rank % 2)
        assert each["later"]["losses"] == pytest.approx(wanted[0][2:], rel=1e-12)
        assert equal(each["later"]["state"], wanted[2])


def test_a_stage_without_parameters_has_nothing_to_divide(found: Ranks) -> None:
    losses = []
    for at in (0, 1):
        torch.manual_seed(3)
        x, layers = torch.randn(SIZE, 4, dtype=torch.float64), [torch.nn.Tanh(), torch.nn.Tanh()]
        layers.insert(2 * at, torch.nn.Linear(4, 4).double())  # type: ignore[arg-type]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = torch.nn.functional.mse_loss(model(x), x.flip(1))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    assert all(each["losses"] == pytest.approx(losses, rel=1e-12) for each in found["bare"])


def test_pipelines_beside_each_other_on_some_ranks_and_on_all(found: Ranks) -> None:
    small, large = plain([0, 1]), plain([5, 6, 7])
    for each in found["beside"]:
        assert each["small"] == pytest.approx(small[0], rel=1e-12) and equal(each["small state"], small[2])
        assert [*each["everyone"], each["after"]] == pytest.approx(large[0], rel=1e-12)
        assert equal(each["state"], plain([5, 6])[2])


def test_ranks_that_do_not_join_are_named_within_the_limit_and_the_group_goes_on(found: Ranks) -> None:
    for rank, each in enumerate(found["refused"]):
        assert each["goes on"] == 4.0
        assert rank == 3 or (f"rank {rank} waited 8 s for rank 3 to make the pipeline of the ranks 0, 1, 2, 3 too, in "
                             "vain") in each["said"]


def test_a_wrapped_model_ends_all_ranks_with_one_sentence(tmp_path: Path) -> None:
    for end in launch_forked(2, [sys.executable, "-m", "tests.support.mesh_ranks", str(tmp_path), "wrapped"]):
        assert end.code == 2 and "the model is wrapped in DistributedDataParallel already" in end.errors
