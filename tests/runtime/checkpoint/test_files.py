"""What a checkpoint's files must be: a bit, a byte, a file or a rank more or less is refused, and no code is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from tests.support.checkpoints import a_plan, training
from tests.support.examples import for_all
from weft.runtime import Session, SessionError, Training
from weft.runtime.checkpoint import state as checkpoint_state
from weft.runtime.checkpoint.checkpoint import Checkpoints
from weft.runtime.checkpoint.files import FileFacts, checksums, fault_of, marker_of, share_of, write_marker
from weft.runtime.replay.single_rank import single_rank

STEP = "step-000000001"
FLIPS = int(os.environ.get("WEFT_FLIPS", "200"))


def parts(width: int = 3) -> Training:
    """A small model, so that its checkpoint is small too; with a state of AdamW's after a step."""
    made = training(a_plan(1), 0, width)
    assert made.optimizer is not None and made.masters is not None
    for parameter in made.masters.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.optimizer.step()
    return made


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with single_rank(a_plan(1), 0, torch.device("cpu")) as made:
        yield made


@pytest.fixture(scope="module")
def saved(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one checkpoint in it."""
    folder = tmp_path_factory.mktemp("saved")
    Checkpoints(folder, every=1).save(a_plan(1), session, parts(), 0)
    return folder


def resumed(folder: Path, session: Session, *, unchecked: bool = False, into: Training | None = None) -> Training:
    into = training(a_plan(1), 0, 3) if into is None else into
    assert Checkpoints(folder, resume=True, unchecked=unchecked).restore(a_plan(1), session, into) == 1
    return into


def refused(folder: Path, session: Session) -> str:
    """The sentence with which the newest checkpoint in ``folder`` is refused; nothing of it is taken."""
    into = training(a_plan(1), 0, 3)
    before = {name: tensor.clone() for name, tensor in into.stages[0].state_dict().items()}
    with pytest.raises(SessionError) as raised:
        resumed(folder, session, into=into)
    assert all(torch.equal(tensor, before[name]) for name, tensor in into.stages[0].state_dict().items())
    assert into.optimizer is not None and not into.optimizer.state
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


def test_a_checkpoint_comes_back_bit_for_bit(saved: Path, session: Session) -> None:
    chance = random.getstate()
    found, wanted = resumed(saved, session), parts()
    assert random.getstate() == chance
    for name, tensor in wanted.stages[0].state_dict().items():
        assert torch.equal(found.stages[0].state_dict()[name], tensor)
    assert found.optimizer is not None and wanted.optimizer is not None
    for mine, theirs in zip(found.optimizer.state.values(), wanted.optimizer.state.values(), strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


@for_all(st.data(), tries=FLIPS)
def test_any_flipped_bit_of_any_file_is_refused_by_its_name(saved: Path, session: Session, data: st.DataObject) -> None:
    """With sizes alone, of 150 such flips 35 went on with another state and 42 from the beginning, without a word, and
    44 were tracebacks."""
    file = data.draw(st.sampled_from(sorted((saved / STEP).iterdir())))
    whole = file.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    broken = bytearray(whole)
    broken[bit // 8] ^= 1 << bit % 8
    try:
        file.write_bytes(broken)
        sentence = refused(saved, session)
    finally:
        file.write_bytes(whole)
    assert str(file) in sentence or (file.name == "complete.json" and "is of an earlier weft" in sentence)
    assert "delete" in sentence


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be spoilt."""
    shutil.copytree(saved, tmp_path / "saved")
    return tmp_path / "saved"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _swap(path: Path) -> None:
    """With another rank's, of the same size."""
    path.write_bytes(bytes(reversed(path.read_bytes())))


@pytest.mark.parametrize(("name", "spoil", "says"), [
    ("__0_0.distcp", _truncate, "bytes, complete.json says"),
    ("__0_0.distcp", Path.unlink, "is missing"),
    ("__0_0.distcp", _swap, "is not what was written: its sha256 is"),
    (".metadata", Path.unlink, "is missing"),
    ("complete.json", Path.unlink, "No such file"),
    ("complete.json", _truncate, "complete.json"),
    ("complete.json", lambda path: path.write_bytes(b""), "complete.json"),
    ("complete.json", lambda path: path.write_text("[]"), "complete.json"),
    ("__1_0.distcp", lambda path: path.write_bytes(b"of another rank"), "is not among the files in complete.json"),
])
def test_files_that_are_not_what_was_written_are_named(
        copy: Path, session: Session, name: str, spoil: Callable[[Path], object], says: str) -> None:
    spoil(copy / STEP / name)
    sentence = refused(copy, session)
    assert f"{copy / STEP / name}: " in sentence and says in sentence and "delete its folder to go on" in sentence


def test_files_that_ranks_have_swapped_are_named(tmp_path: Path) -> None:
    folder = tmp_path / STEP
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"of the first")
    (folder / "__1_0.distcp").write_bytes(b"of the other")
    write_marker(folder, {"plan": "p", "step": 1, "replicas": 1, "signatures": {}}, checksums(folder, 0, 1))
    marker = marker_of(folder)
    assert fault_of(folder, marker, marker.files, lambda name: None) is None
    (folder / "__0_0.distcp").write_bytes(b"of the other")
    (folder / "__1_0.distcp").write_bytes(b"of the first")
    found = [fault_of(folder, marker, share_of(marker.files, process, 2), lambda name: None) for process in (0, 1)]
    for process, sentence in enumerate(found):
        assert sentence is not None and f"__{process}_0.distcp: is not what was written" in sentence


def test_the_newest_is_not_passed_over_because_it_is_damaged(copy: Path, session: Session) -> None:
    """It would go on from an older one, or from the beginning, without a word."""
    older = copy / STEP
    Checkpoints(copy, every=1).save(a_plan(1), session, parts(), 1)
    _truncate(copy / "step-000000002" / "__0_0.distcp")
    assert "step-000000002" in refused(copy, session)
    shutil.rmtree(copy / "step-000000002")
    assert older.exists()
    resumed(copy, session)


def _rewritten(folder: Path, **changed: object) -> None:
    """The marker of a checkpoint whose author has changed it, checksum and all."""
    marker = json.loads((folder / "complete.json").read_text())
    files = {name: FileFacts(**facts) for name, facts in marker["files"].items()}
    facts = {key: value for key, value in marker.items() if key not in ("format", "files", "sha256")}
    write_marker(folder, {**facts, **changed}, files)


@pytest.mark.parametrize(("changed", "says"), [
    ({"signatures": {"0": {}, "1": {}}}, "the checkpoint is of 2 ranks, now there are 1"),
    ({"signatures": {"0": {"0": "x"}}}, "the checkpoint is of another model: rank 0 had the stages {'0': 'x'}"),
    ({"replicas": 2}, "the checkpoint is of 2 replicas, now there are 1"),
    ({"plan": "x"}, "the checkpoint is of another plan"),
    ({"optimizers": {"0": "SGD of float32"}}, "rank 0 was trained with SGD of float32, now it has AdamW of float32"),
    ({"optimizers": {"0": "AdamW of float64"}}, "rank 0 was trained with AdamW of float64, now it has AdamW of float"),
    ({"step": 7}, "complete.json is of batch 7"),
    ({"step": "7"}, 'step is "7", it must be a whole number'),
])
def test_a_checkpoint_of_something_else_is_refused(
        copy: Path, session: Session, changed: dict[str, object], says: str) -> None:
    _rewritten(copy / STEP, **changed)
    assert says in refused(copy, session)


def test_a_renamed_checkpoint_is_refused(copy: Path, session: Session) -> None:
    (copy / STEP).rename(copy / "step-000000009")
    assert "complete.json is of batch 1" in refused(copy, session)


# -- of an earlier weft ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_without_checksums_is_taken_only_when_told_to(copy: Path, session: Session, version: int) -> None:
    marker = json.loads((copy / STEP / "complete.json").read_text())
    del marker["sha256"]
    if version == 1:  # before there were replicas
        del marker["replicas"]
    marker |= {"format": f"weft.checkpoint/{version}",
               "files": {name: facts["size"] for name, facts in marker["files"].items()}}
    (copy / STEP / "complete.json").write_text(json.dumps(marker, indent=1))
    assert "which wrote no checksums" in refused(copy, session) and "--unchecked" in refused(copy, session)
    found = resumed(copy, session, unchecked=True)
    assert torch.equal(found.stages[0].state_dict()["layer.weight"], parts().stages[0].state_dict()["layer.weight"])
    _truncate(copy / STEP / "__0_0.distcp")
    with pytest.raises(SessionError, match="bytes, complete"):
        resumed(copy, session, unchecked=True)


@pytest.mark.parametrize("earlier", ["runtime.checkpoint", "runtime.checkpoint_state"])
def test_names_in_earlier_pickles_are_known(monkeypatch: pytest.MonkeyPatch, earlier: str) -> None:
    """The type that stands for a tensor was in other modules in earlier versions."""
    for module in ("runtime", earlier):
        made = ModuleType(module)
        made._Name = checkpoint_state._Name  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.setattr(checkpoint_state._Name, "__module__", earlier)
    state = checkpoint_state.flat({"a": torch.ones(1), "b": (1, None)}, "x")
    assert earlier.encode() in state["x/rest"].numpy().tobytes()
    monkeypatch.undo()
    assert checkpoint_state.nested(state, "x") == {"a": torch.ones(1), "b": (1, None)}


# -- of somebody else --------------------------------------------------------------------------------------------------


class Hostile:
    """Makes a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def _remarked(folder: Path) -> None:
    """Its author gives it the right checksums."""
    marker = json.loads((folder / "complete.json").read_text())
    (folder / "complete.json").unlink()
    write_marker(folder, {key: marker[key] for key in ("plan", "step", "replicas", "signatures")},
                 checksums(folder, 0, 1))


def test_code_in_the_metadata_is_not_run(copy: Path, session: Session, tmp_path: Path) -> None:
    (copy / STEP / ".metadata").write_bytes(pickle.dumps(Hostile(tmp_path / "run")))
    _remarked(copy / STEP)
    assert "posix.mkdir" in refused(copy, session) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", [b"", b"\x80\x04.", b"garbage", pickle.dumps(3), pickle.dumps([1])])
def test_metadata_that_are_none_are_refused(copy: Path, session: Session, data: bytes) -> None:
    (copy / STEP / ".metadata").write_bytes(data)
    _remarked(copy / STEP)
    assert ".metadata" in refused(copy, session)


def test_code_among_the_state_is_not_run(copy: Path, session: Session, tmp_path: Path) -> None:
    shutil.rmtree(copy / STEP)
    Checkpoints(copy, every=1).save(a_plan(1), session, parts(), 0)
    marker = (copy / STEP / "complete.json").read_text()
    rest = torch.frombuffer(bytearray(_saved(Hostile(tmp_path / "run"))), dtype=torch.uint8)
    for file in (copy / STEP).iterdir():
        file.unlink()
    save({"rank 0/rest": rest}, storage_writer=FileSystemWriter(copy / STEP))
    (copy / STEP / "complete.json").write_text(marker)
    _remarked(copy / STEP)
    assert "holds what reading it would run as code: posix.mkdir" in refused(copy, session)
    assert not (tmp_path / "run").exists()


def _saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


class Remembers(nn.Linear):
    """A module that keeps an object of a class of its own, or something that cannot be pickled."""

    def __init__(self, kept: object) -> None:
        super().__init__(3, 3)
        self.kept = kept

    def get_extra_state(self) -> object:
        return self.kept

    def set_extra_state(self, state: object) -> None:
        self.kept = state


@pytest.mark.parametrize(("kept", "says"), [(Path("x"), "pathlib"), (lambda: None, "lambda")])
def test_a_state_that_could_not_be_read_again_is_refused_when_it_is_saved(
        session: Session, tmp_path: Path, kept: object, says: str) -> None:
    made = parts()
    made.stages[0].add_module("more", Remembers(kept))
    with pytest.raises(SessionError, match=f"reading it would run code: .*{says}.*; keep tensors, numbers"):
        Checkpoints(tmp_path, every=1).save(a_plan(1), session, made, 0)
    assert not list(tmp_path.glob("step-*"))


def test_an_optimizer_of_another_kind_is_refused(copy: Path, session: Session) -> None:
    into = training(a_plan(1), 0, 3)
    assert into.masters is not None
    first, *rest = into.masters.parameters()
    into.optimizer = torch.optim.AdamW([{"params": [first]}, {"params": rest}])
    with pytest.raises(SessionError, match="does not fit the model or its optimizer: ValueError: loaded state dict"):
        resumed(copy, session, into=into)
