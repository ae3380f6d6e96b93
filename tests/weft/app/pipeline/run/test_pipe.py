"""What a pipeline can do beside plain steps, held against one process: all parts in one launch of two ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR

from tests.support.captured_models import LearnedLoss, halved, made
from tests.support.pipeline_ranks import EPS, one_process
from tests.support.ranks import found_by_parts
from tests.support.state_ranks import MICRO_BATCHES, PARTS, SIZE
from weft.runtime.captured.materials import Materials
from weft.runtime.interface.precision import MasterWeights

pytestmark = pytest.mark.slow

RANKS = 2
Ranks = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank found, by part."""
    folder = tmp_path_factory.mktemp("state")
    torch.save(made("gpt", SIZE).model.state_dict(), folder / "gpt.pt")
    return found_by_parts(RANKS, "tests.support.state_ranks", folder, [*PARTS])


def furthest(found: list[dict[str, torch.Tensor]], wanted: dict[str, torch.Tensor]) -> float:
    """The largest relative difference of what ranks have together from what is wanted."""
    together = {name: value for each in found for name, value in each.items()}
    assert set(together) == set(wanted)
    rounding = 1e-6 * max(float(value.norm()) for value in wanted.values())
    return max(float((together[name] - value).norm()) / max(float(value.norm()), rounding)
               for name, value in wanted.items())


def plain(scheduled: bool = False, learned: nn.Module | None = None) -> tuple[list[float], nn.Module, float]:
    """The losses of four steps in one process, the model after them, and the rate of a scheduler, if there is one. By a
    loss that is ``learned``, the model has a hook."""
    model, losses = made("gpt", SIZE).model, []
    trained = [*model.parameters()] if learned is None else [*halved(model).parameters(), *learned.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, eps=EPS)
    scheduler = MultiStepLR(optimizer, [1, 3] if scheduled else [], gamma=0.1)
    for seed in range(4):
        case = made("gpt", SIZE, seed)
        assert case.loss is not None
        loss = (learned or case.loss)(model(*case.args), case.target)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses, model, float(scheduler.get_last_lr()[0])


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


def test_gradients_add_up_until_they_are_made_zero_and_torch_clips_by_those_of_all_ranks(found: Ranks) -> None:
    model = made("gpt", SIZE).model

    def gradients() -> dict[str, torch.Tensor]:
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    def backward(seed: int) -> None:
        case = made("gpt", SIZE, seed)
        assert case.loss is not None
        case.loss(model(*case.args), case.target).backward()  # type: ignore[no-untyped-call]

    backward(0)
    backward(1)
    before, largest = gradients(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9, float("inf"))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    after = gradients()
    model.zero_grad()
    backward(2)
    for each in found["added"]:
        assert each["norm"] == pytest.approx(float(norm)) and each["largest"] == pytest.approx(float(largest))
        assert each["alone"] == pytest.approx(4.0)
    for name, wanted in (("before", before), ("after", after), ("third", gradients())):
        assert furthest([each[name] for each in found["added"]], wanted) <= 1e-12, name


def test_a_run_goes_on_from_a_checkpoint_in_other_stages(found: Ranks) -> None:
    losses, model, _ = plain()
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


def test_a_loss_learns_as_a_part_of_the_last_stage_and_hooks_see_gradients(found: Ranks) -> None:
    loss = LearnedLoss()
    losses, model, _ = plain(learned=loss)
    wanted = {**model.state_dict(), "loss.scale": loss.scale.detach()}
    for each in found["of_losses"]:
        assert each["losses"] == pytest.approx(losses, rel=1e-10) and each["none0"] and each["none1"]
        assert each["again"] == pytest.approx(losses[2:], rel=1e-10)
        for state in (each["state0"], each["state1"]):
            assert float(state.pop("loss.seen")) == 4 * MICRO_BATCHES
            assert list(state) == list(wanted) and furthest([state], wanted) <= 1e-10


def test_a_frozen_stage_has_no_backward_and_dropout_goes_on_after_a_checkpoint(found: Ranks) -> None:
    losses, _, _ = one_process("adapted", 3, seed=5, lr=0.1)
    for rank in range(RANKS):
        drawn, again = found["drawn"][rank], found["drawn_again"][rank]
        assert drawn["losses"] == pytest.approx(losses, rel=1e-11)
        assert again["behind"] == 2 and again["losses"] == pytest.approx(losses[2:], rel=1e-11)
    assert [each["letters"] for each in found["drawn"]] == ["F", "FIW"]
    assert [bool(each["named"]) for each in found["drawn"]] == [False, True]


def test_on_the_meta_device_no_rank_ever_has_more_than_its_part(found: Ranks) -> None:
    losses, model, _ = plain()
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    for each in found["meta"]:
        assert each["losses"] == pytest.approx(losses, rel=1e-10)
        assert furthest([each["state"]], model.state_dict()) <= 1e-10 and list(each["state"]) == list(
            model.state_dict())
        assert set(each["held"]) == set(each["names"]) and len(each["held"]) < len(sizes)
        assert each["alive"] < 0.9 * sum(sizes.values())
    parts = [each["held"] for each in found["meta"]]
    assert {**parts[0], **parts[1]} == sizes and parts[0].keys() & parts[1].keys() == {"words.weight"}


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


def in_parts(model: nn.Module, trained: list[nn.Parameter], after: Any, context: Any) -> list[float]:
    """The losses of three steps in one process, micro-batch by micro-batch."""
    optimizer, losses = torch.optim.AdamW(trained, lr=1e-3, eps=EPS), []
    for seed in range(3):
        case, total = made("gpt", SIZE, seed), 0.0
        for ids, target in zip(case.args[0].chunk(MICRO_BATCHES), case.target.chunk(MICRO_BATCHES), strict=True):
            with context():
                assert case.loss is not None
                loss = case.loss(model(ids), target)
            (loss / MICRO_BATCHES).backward()  # type: ignore[no-untyped-call]
            total += loss.item() / MICRO_BATCHES
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
        after()
    return losses


def test_modules_in_bf16_train_weights_in_fp32(found: Ranks) -> None:
    model = made("gpt", SIZE, dtype=torch.float32).model
    full = [p.detach() for p in model.parameters()]
    masters = MasterWeights(model.to(torch.bfloat16).parameters(), full)
    losses = in_parts(model, masters.parameters(), masters.write_back, nullcontext)
    wanted = {name: masters.of(p).detach() for name, p in model.named_parameters(remove_duplicate=False)}
    for each in found["narrow"]:
        assert each["modules"] == {"torch.bfloat16"} and each["trained"] == {"torch.float32"}
        assert each["losses"] == pytest.approx(losses, rel=2e-3)
        assert {value.dtype for value in each["state"].values()} == {torch.float32}
        assert any(not torch.equal(value, value.bfloat16().float()) for value in each["state"].values())
        assert max(float((each["state"][name] - value).abs().max()) for name, value in wanted.items()) <= 6e-3
    for before, after in zip(found["narrow"], found["narrow_on_meta"], strict=True):
        assert after["loss"] == before["loss"]
        assert all(torch.equal(after["state"][name], value) for name, value in before["state"].items())


def test_autocast_is_that_of_one_process_also_with_split_backwards(found: Ranks) -> None:
    model = made("gpt", SIZE, dtype=torch.float32).model
    losses = in_parts(model, list(model.parameters()), lambda: None,
                      lambda: torch.autocast("cpu", torch.bfloat16))
    for each in found["cast"]:
        assert each["losses"] == pytest.approx(losses, rel=2e-3) and "W0" in each["plan"]
        assert "torch.bfloat16" in each["boundaries"]
        assert {value.dtype for value in each["state"].values()} == {torch.float32}
        assert max(float((each["state"][name] - value).abs().max())
                   for name, value in model.state_dict().items()) <= 6e-3


def test_compiled_stages_compute_the_same_with_whole_backwards(found: Ranks) -> None:
    losses, *_ = plain()
    for each in found["with_compile"]:
        assert each["losses"] == pytest.approx(losses[:2], rel=1e-10) and each["graphs"] == 1
        assert each["plan"] == ["F0", "F1", "B1", "B0"]
        assert each["cast"] == pytest.approx(losses[0], rel=1e-2) and each["graphs of both"] == 2


def test_schedulers_go_on_and_dcp_is_read_by_the_plain_model(found: Ranks) -> None:
    losses, model, rate = plain(scheduled=True)
    for each in found["of_schedulers"]:
        assert each["losses"] == pytest.approx(losses, rel=1e-11) and each["again"] == pytest.approx(losses[2:], 1e-11)
        assert each["behind"] == 2 and each["rate"] == pytest.approx([rate])
    state = made("gpt", SIZE).model.state_dict()
    dcp.load(state, checkpoint_id=found["of_schedulers"][0]["folder"], no_dist=True)  # type: ignore[attr-defined]
    assert all(torch.equal(state[name], value) for name, value in found["of_schedulers"][0]["state"].items())
    assert all(torch.allclose(state[name], value, rtol=1e-9) for name, value in model.state_dict().items())


def test_an_overflow_in_fp16_is_left_out_on_all_ranks(found: Ranks) -> None:
    model = made("gpt", SIZE, dtype=torch.float32).model
    first = made("gpt", SIZE, 0, torch.float32)
    assert first.loss is not None
    wanted = first.loss(model(*first.args), first.target).item()
    for each in found["in_halves"]:
        assert each["losses"][0] == pytest.approx(wanted, rel=5e-3)
        assert each["scales"] == [*each["scales"][:2], 2.0**23, each["scales"][3]] and each["gradients"][2] == 0
        assert each["changes"][2] == 0.0 and max(each["changes"]) > 1e-3
        assert each["resumed"] == each["scales"][-1]
    assert found["in_halves"][0]["scales"] == found["in_halves"][1]["scales"]


def test_a_profile_has_the_plans_names(found: Ranks) -> None:
    for each in found["profiled"]:
        said = {f"weft:{text}" for text in each["plan"] if not text.startswith(("SEND", "RECV"))}
        assert set(each["names"]) == said and any("REDUCE" in name for name in said)
