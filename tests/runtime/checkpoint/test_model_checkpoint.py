"""A checkpoint in the model's names: whole or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.one_rank import one_rank
from weft.runtime.checkpoint.files import MARKER, place_of_run
from weft.runtime.checkpoint.model_checkpoint import Trained, find, restore_training, save
from weft.runtime.checkpoint.weights import weights_of
from weft.runtime.ranks.session import Session, SessionError


@pytest.fixture
def session() -> Iterator[Session]:
    with one_rank() as found:
        yield found


def trained() -> tuple[nn.Linear, torch.optim.Optimizer, dict[int, str]]:
    torch.manual_seed(3)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer, {id(p): name for name, p in model.named_parameters()}


def saved(session: Session, folder: Path, step: int = 4, keep: int | None = None) -> Path:
    model, optimizer, names = trained()
    return save(session, folder, step, dict(model.named_parameters()), Trained(optimizer, names), keep)


def test_what_is_saved_is_found_again(session: Session, tmp_path: Path) -> None:
    assert find(session, tmp_path) is None
    assert saved(session, tmp_path).name == "step-000000004"
    state = torch.get_rng_state()
    model, optimizer, _ = trained()
    found = find(session, tmp_path)
    assert found is not None and found.step == 4 and found == find(session, found.path)
    weights = weights_of(tmp_path)
    assert all(torch.equal(weights.read(name), value) for name, value in model.named_parameters())
    fresh = nn.Linear(3, 2)
    other = torch.optim.AdamW(fresh.parameters())
    torch.manual_seed(99)
    restore_training(session, found, Trained(other, {id(p): name for name, p in fresh.named_parameters()}))
    assert torch.equal(other.state[fresh.bias]["exp_avg"], optimizer.state[model.bias]["exp_avg"])
    assert other.param_groups[0]["lr"] == 0.5 and torch.equal(torch.get_rng_state(), state)


def test_only_the_last_stay_if_so_asked_and_what_was_left_half_is_cleared_away(session: Session,
                                                                               tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f".step-{step:09d}.partial").mkdir()
        saved(session, tmp_path, step, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000003"]


def cut(path: Path) -> None:
    file = next(path.glob("training-*"))
    file.write_bytes(file.read_bytes()[:-1])


def flip(path: Path) -> None:
    file = next(path.glob("model-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def foreign(path: Path) -> None:
    (path / MARKER).write_text(json.dumps({"format": "weft.checkpoint/3", "step": 4}))


def unknown(path: Path) -> None:
    (path / "config.json").write_bytes(b"")  # a user's, which is none of its files
    (path / "more.safetensors").write_bytes(b"")


@pytest.mark.parametrize(("damage", "said"), [
    (cut, r"training-00001-of-00001.safetensors: has \d+ bytes, complete.json says \d+; the checkpoint is damaged"),
    (flip, "model-00001-of-00001.safetensors: is not what was written: its sha256 is"),
    (foreign, "format is 'weft.checkpoint/3', it must be weft.model-checkpoint/1"),
    (unknown, "more.safetensors: is not among the files in complete.json"),
    (lambda path: (path / MARKER).unlink(), "complete.json: No such file"),
    (lambda path: next(path.glob("model-*.safetensors")).unlink(), "model-00001-of-00001.safetensors: is missing")])
def test_a_checkpoint_that_is_not_what_was_written_is_refused(damage: Callable[[Path], None], said: str,
                                                              session: Session, tmp_path: Path) -> None:
    damage(saved(session, tmp_path))
    with pytest.raises(SessionError, match=said) as raised:
        find(session, tmp_path)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_written_is_one_sentence(session: Session, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match=r"file/.step-000000004.partial: cannot be written: Not a directory"):
        saved(session, tmp_path / "file")
    with pytest.raises(SessionError, match=r"q is of torch.float4_e2m1fn_x2, which cannot be saved"):
        save(session, tmp_path, 1, {"q": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)},
             Trained(None, {}))


def test_a_state_without_optimizer_is_no_state_of_one(session: Session, tmp_path: Path) -> None:
    model, optimizer, names = trained()
    save(session, tmp_path, 1, dict(model.named_parameters()), Trained(None, names))
    found = find(session, tmp_path)
    assert found is not None
    restore_training(session, found, Trained(None, names))
    with pytest.raises(SessionError, match="it was saved without an optimizer: leave the optimizer out"):
        restore_training(session, found, Trained(optimizer, names))


def test_runs_in_one_folder_are_kept_apart(session: Session, tmp_path: Path) -> None:
    """The second run saves fewer batches than the first, which would have stayed in its place."""
    assert place_of_run(tmp_path, None) == tmp_path
    old = saved(session, tmp_path, 400, 2)
    place = place_of_run(tmp_path, None)
    assert place == tmp_path / "run-002"
    own = [saved(session, place, step, 2) for step in (10, 20, 30)]
    assert old.exists() and [path.exists() for path in own] == [False, True, True]
    found = find(session, tmp_path)
    assert found is not None and found.path == own[2]
    assert place_of_run(tmp_path, own[2]) == place and place_of_run(tmp_path, old) == tmp_path / "run-003"
    assert place_of_run(tmp_path, own[1]) == tmp_path / "run-003"  # on from what is not the newest: another branch
