"""What a pipeline can do beside plain steps, held against one process: all parts in one launch of two ranks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.captured_models import made
from tests.support.ranks import launch_forked
from tests.support.state_ranks import PARTS, SIZE
from weft.runtime.captured.materials import Materials

RANKS = 2
Ranks = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank found, by part."""
    folder = tmp_path_factory.mktemp("state")
    torch.save(made("gpt", SIZE).model.state_dict(), folder / "gpt.pt")
    ended = launch_forked(RANKS, [sys.executable, "-m", "tests.support.state_ranks", str(folder), *PARTS], timeout=200)
    assert [end.code for end in ended] == [0] * RANKS, ended
    return {part: [torch.load(folder / f"{part}.{rank}.pt") for rank in range(RANKS)] for part in PARTS}


def furthest(found: list[dict[str, torch.Tensor]], wanted: dict[str, torch.Tensor]) -> float:
    """The largest relative difference of what ranks have together from what is wanted."""
    together = {name: value for each in found for name, value in each.items()}
    assert set(together) == set(wanted)
    rounding = 1e-6 * max(float(value.norm()) for value in wanted.values())
    return max(float((together[name] - value).norm()) / max(float(value.norm()), rounding)
               for name, value in wanted.items())


def plain() -> tuple[list[float], nn.Module]:
    """The losses of four steps in one process, and the model after them."""
    model, losses = made("gpt", SIZE).model, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for seed in range(4):
        case = made("gpt", SIZE, seed)
        assert case.loss is not None
        loss = case.loss(model(*case.args), case.target)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, model


@pytest.mark.slow
def test_batches_added_up_are_one_larger_batch_clipped_once(found: Ranks) -> None:
    model, losses = made("gpt", SIZE).model, []
    for seed in range(3):
        case = made("gpt", SIZE, seed)
        assert case.loss is not None
        loss = case.loss(model(*case.args), case.target)
        losses.append(loss.item())
        (loss / 3).backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    for each in found["accumulated"]:
        assert each["losses"] == pytest.approx(losses, rel=1e-12) and each["norm"] == pytest.approx(float(norm))
    assert furthest([each["gradients"] for each in found["accumulated"]], {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None}) <= 1e-12


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_in_other_stages(found: Ranks) -> None:
    losses, model = plain()
    for rank in range(RANKS):
        before, after = found["saved"][rank], found["resumed"][rank]
        assert before["losses"] == pytest.approx(losses, rel=1e-10)
        assert after["losses"] == pytest.approx(losses[2:], rel=1e-10)
        assert after["behind"] == 2 and after["steps"] == 4 and before["path"].endswith("checkpoints/step-000000002")
        for state in (before["state"], after["state"]):
            assert list(state) == list(model.state_dict())
            assert furthest([state], model.state_dict()) <= 1e-10
    parts = [set(each["own"]) for each in found["resumed"]]
    assert parts[0] & parts[1] == {"words.weight", "head.weight"} and parts[0] | parts[1] == set(model.state_dict())


@pytest.mark.slow
def test_on_the_meta_device_no_rank_ever_has_more_than_its_part(found: Ranks) -> None:
    losses, model = plain()
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    for each in found["meta"]:
        assert each["losses"] == pytest.approx(losses, rel=1e-10)
        assert furthest([each["state"]], model.state_dict()) <= 1e-10 and list(each["state"]) == list(
            model.state_dict())
        assert set(each["held"]) == set(each["names"]) and len(each["held"]) < len(sizes)
        assert each["alive"] < 0.9 * sum(sizes.values())
    parts = [each["held"] for each in found["meta"]]
    assert {**parts[0], **parts[1]} == sizes and parts[0].keys() & parts[1].keys() == {"words.weight"}


@pytest.mark.slow
def test_numbers_that_modules_make_do_not_depend_on_the_ranks(found: Ranks) -> None:
    case = made("gpt", SIZE, device="meta")
    torch.manual_seed(11)
    alone = Materials(case.model, torch.device("cpu")).of(case.model.parameters())
    wanted = {name: alone[id(parameter)] for name, parameter in case.model.named_parameters(remove_duplicate=False)}
    plain = made("gpt", SIZE)
    plain.model.load_state_dict(wanted)
    assert plain.loss is not None
    loss = plain.loss(plain.model(*plain.args), plain.target)
    for each in found["made_here"]:
        assert set(each["state"]) == set(wanted) and len(each["held"]) < len(wanted)
        assert all(torch.equal(each["state"][name], value) for name, value in wanted.items())
        assert each["loss"] == pytest.approx(loss.item(), rel=1e-12)
