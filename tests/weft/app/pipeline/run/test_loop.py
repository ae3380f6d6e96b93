"""What a training loop has beside steps: schedulers, fp16, profiles, other checkpoints; one launch of two ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.optim.lr_scheduler import MultiStepLR

from tests.support.captured_models import made
from tests.support.loop_ranks import PARTS
from tests.support.pipeline_ranks import EPS
from tests.support.ranks import launch_forked
from tests.support.state_ranks import SIZE

RANKS = 2
FOLDER = "folder"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each rank found, by part, and where."""
    folder = tmp_path_factory.mktemp("loop")
    ended = launch_forked(RANKS, [sys.executable, "-m", "tests.support.loop_ranks", str(folder), *PARTS], timeout=300)
    assert [end.code for end in ended] == [0] * RANKS, ended
    return {FOLDER: folder, **{part: [torch.load(folder / f"{part}.{rank}.pt") for rank in range(RANKS)]
                               for part in PARTS}}


@pytest.mark.slow
def test_schedulers_go_on_and_dcp_is_read_by_the_plain_model(found: dict[str, Any]) -> None:
    model, losses = made("gpt", SIZE).model, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPS)
    scheduler = MultiStepLR(optimizer, [1, 3], gamma=0.1)
    for seed in range(4):
        case = made("gpt", SIZE, seed)
        assert case.loss is not None
        loss = case.loss(model(*case.args), case.target)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    for each in found["of_schedulers"]:
        assert each["losses"] == pytest.approx(losses, rel=1e-11) and each["again"] == pytest.approx(losses[2:], 1e-11)
        assert each["behind"] == 2 and each["rate"] == pytest.approx(scheduler.get_last_lr())
    plain = made("gpt", SIZE).model
    state = plain.state_dict()
    folder: Path = found[FOLDER]
    dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True)  # type: ignore[attr-defined]
    assert all(torch.equal(state[name], value) for name, value in found["of_schedulers"][0]["state"].items())
    assert all(torch.allclose(state[name], value, rtol=1e-9) for name, value in model.state_dict().items())


@pytest.mark.slow
def test_an_overflow_in_fp16_is_left_out_on_all_ranks(found: dict[str, Any]) -> None:
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


@pytest.mark.slow
def test_a_profile_has_the_plans_names(found: dict[str, Any]) -> None:
    for each in found["profiled"]:
        said = {f"weft:{text}" for text in each["plan"] if not text.startswith(("SEND", "RECV"))}
        assert set(each["names"]) == said and any("REDUCE" in name for name in said)
