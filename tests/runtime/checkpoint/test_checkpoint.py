"""Checkpoints: a run that was stopped goes on bit for bit, wherever it was killed; what must not go on is refused.

Run as a program (``python -m tests.runtime.checkpoint.test_checkpoint FOLDER ...``), this file is one rank of what its
tests launch.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from tests.support.checkpoints import WIDTH, a_plan, training
from tests.support.ranks import launch_forked
from weft.runtime import AdamA, Timeline
from weft.runtime.checkpoint import checkpoint, files
from weft.runtime.checkpoint.checkpoint import Checkpoints
from weft.runtime.checkpoint.files import checksums, commit, outlived, whole
from weft.runtime.ranks.launch import Ended
from weft.runtime.ranks.session import SessionError, join
from weft.runtime.replay.run import Replay, run_training
from weft.runtime.replay.single_rank import single_rank

# -- in this process ---------------------------------------------------------------------------------------------------


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint."""
    return next(iter(whole(folder)), None)


def a_checkpoint(folder: Path, step: int) -> Path:
    partial = folder / f".step-{step:09d}.partial"
    partial.mkdir(parents=True)
    (partial / "data").write_bytes(b"abc")
    facts = {"plan": "p", "step": step, "replicas": 1, "signatures": {}}
    commit(partial, folder / f"step-{step:09d}", facts, checksums(partial, 0, 1))
    return folder / f"step-{step:09d}"


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    assert latest(tmp_path / "nowhere") is None
    first, second, third = (a_checkpoint(tmp_path, step) for step in (9, 10, 11))
    (tmp_path / ".step-000000012.partial").mkdir()
    assert latest(tmp_path) == third
    (third / "data").write_bytes(b"ab")  # cut off
    assert latest(tmp_path) == second
    (second / "complete.json").unlink()
    assert latest(tmp_path) == first


def test_a_step_that_is_saved_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, 3)
    assert latest(tmp_path) == a_checkpoint(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]


def test_a_run_that_begins_anew_among_another_s_checkpoints_is_refused(tmp_path: Path) -> None:
    plan = a_plan(1)
    a_checkpoint(tmp_path, 400)
    with single_rank(plan, 0, torch.device("cpu")) as session:
        with pytest.raises(SessionError, match="holds a checkpoint of an earlier run, step-000000400: go on from"):
            Checkpoints(tmp_path, every=2).restore(plan, session, training(plan, 0))
        assert Checkpoints(tmp_path / "other", every=2).restore(plan, session, training(plan, 0)) == 0


def test_what_was_saved_now_is_never_dropped(tmp_path: Path) -> None:
    first, second, third = (a_checkpoint(tmp_path, step) for step in (4, 5, 6))
    assert outlived(tmp_path, 2, third) == [first] and outlived(tmp_path, 1, first) == [third, second]


def test_a_disk_that_is_full_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch raises then is no ``Exception``, so it would pass by everybody who tells the other ranks."""
    def full(*arguments: Any, **options: Any) -> None:
        raise CheckpointException("write", {0: (OSError(28, "No space left on device"), traceback.StackSummary())})

    plan = a_plan(1)
    monkeypatch.setattr(checkpoint, "save", full)
    with single_rank(plan, 0, torch.device("cpu")) as session, pytest.raises(SessionError) as raised:
        Checkpoints(tmp_path, every=1).save(plan, session, training(plan, 0), 0)
    partial = tmp_path / ".step-000000001.partial"
    assert str(raised.value) == f"{partial}: cannot be written: [Errno 28] No space left on device (process 0)"
    assert not issubclass(CheckpointException, Exception) and latest(tmp_path) is None


def test_a_file_that_cannot_be_written_to_its_end_is_a_sentence(tmp_path: Path) -> None:
    """A limit of the size of files does what a full disk does; torch's own message names neither."""
    plan, limits = a_plan(1), resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with single_rank(plan, 0, torch.device("cpu")) as session:
        made = training(plan, 0, 64)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
            with pytest.raises(SessionError) as raised:
                Checkpoints(tmp_path, every=1).save(plan, session, made, 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
    assert re.search(r"cannot be written: (a file was cut off, as on a disk that is full or beyond a quota: \d+ bytes "
                     r"are free|.*File too large) \(process 0\)$", str(raised.value))


def test_a_run_with_nothing_left_says_so() -> None:
    timeline = Timeline.of(a_plan(), 1.0, [])
    assert str(Replay(timeline, None)) == "nothing was left to run: the checkpoint has all batches behind it"


# -- real ranks --------------------------------------------------------------------------------------------------------


def launch(folder: Path, *arguments: str, ranks: int = 2, **environment: str) -> list[Ended]:
    return launch_forked(ranks, [sys.executable, "-m", __name__, str(folder), *arguments],
                         environment=environment)


def weights(folder: Path, ranks: int = 2) -> list[dict[str, Tensor]]:
    return [torch.load(folder / f"weights-{rank}.pt") for rank in range(ranks)]


def assert_same(one: Path, other: Path, ranks: int) -> None:
    for mine, theirs in zip(weights(one, ranks), weights(other, ranks), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A run that nothing happened to: its folder, and its losses."""
    folder = tmp_path_factory.mktemp("straight")
    whole = launch(folder)
    assert [end.code for end in whole] == [0, 0], whole
    return folder, json.loads(whole[0].output)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["writing", "renaming"])
def test_a_run_killed_while_it_saves_goes_on_bit_for_bit(
        tmp_path: Path, straight: tuple[Path, list[float]], when: str) -> None:
    broken = tmp_path / "broken"
    killed = launch(broken, "--every", "2", WEFT_KILL=when)
    assert -signal.SIGKILL in [end.code for end in killed] and not any(end.late for end in killed), killed
    newest = latest(broken / "saved")
    assert newest is not None and newest.name == "step-000000002"  # batch 4's never became one
    assert any(path.name.endswith(".partial") for path in (broken / "saved").iterdir())
    resumed = launch(broken, "--every", "2", "--resume")
    assert [end.code for end in resumed] == [0, 0], resumed
    assert json.loads(resumed[0].output) == straight[1][2:]
    assert_same(straight[0], broken, 2)
    assert sorted(path.name for path in (broken / "saved").iterdir()) == ["step-000000004", "step-000000006"]
    if when == "writing":
        return
    ended = launch(broken, "--every", "2", "--resume", WEFT_STAGES="wider")
    assert [end.code for end in ended] == [2, 2], ended
    assert "the checkpoint is of another model: rank" in ended[0].errors


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["flip", "swap"])
def test_all_ranks_refuse_a_checkpoint_in_which_one_rank_s_file_is_another(tmp_path: Path, spoil: str) -> None:
    folder = tmp_path / "run"
    assert [end.code for end in launch(folder, "--every", "6")] == [0, 0]
    first, second = (folder / "saved" / "step-000000006" / f"__{rank}_0.distcp" for rank in (0, 1))
    if spoil == "flip":
        data = bytearray(second.read_bytes())
        data[len(data) // 2] ^= 1
        second.write_bytes(data)
    else:
        first.rename(tmp_path / "one")
        second.rename(first)
        (tmp_path / "one").rename(second)
    ends = launch(folder, "--every", "6", "--resume")
    named = rf"{re.escape(str(folder))}\S+/__{'1' if spoil == 'flip' else '[01]'}_0.distcp: (is not what was|has [0-9])"
    for rank, end in enumerate(ends):
        assert end.code == 2 and not end.late, ends
        said, = (line for line in end.errors.splitlines() if line.startswith("weft: "))
        assert said.startswith(f"weft: rank {rank}: ") and re.search(named, said), said


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "ranks"), [("AdamW", 4), ("AdamA", 4), ("AdamA", 2)])
def test_replicas_and_moments_killed_while_they_are_saved_go_on_bit_for_bit(
        tmp_path: Path, optimizer: str, ranks: int) -> None:
    """Replicas on two ranks each. The last process is killed while it writes its part of batch 4's checkpoint."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ends = launch(whole, "--every", "6", ranks=ranks, WEFT_OPTIMIZER=optimizer)
    assert [end.code for end in ends] == [0] * ranks, ends
    killed = launch(broken, "--every", "2", ranks=ranks, WEFT_OPTIMIZER=optimizer, WEFT_KILL="writing")
    assert -signal.SIGKILL in [end.code for end in killed] and not any(end.late for end in killed), killed
    newest = latest(broken / "saved")
    assert newest is not None and newest.name == "step-000000002"
    resumed = launch(broken, "--every", "2", "--resume", ranks=ranks, WEFT_OPTIMIZER=optimizer)
    assert [end.code for end in resumed] == [0] * ranks, resumed
    assert json.loads(resumed[0].output) == json.loads(ends[0].output)[2:]
    assert_same(whole, broken, ranks)
    if ranks == 4:
        _assert_saved_once(whole / "saved" / "step-000000006", weights(whole, 4))
        fewer = launch(broken, "--every", "2", "--resume", ranks=2, WEFT_OPTIMIZER=optimizer, WEFT_REPLICAS="1")
        assert [end.code for end in fewer] == [2, 2]
        assert "the checkpoint is of 2 replicas, now there are 1" in fewer[0].errors


def _assert_saved_once(folder: Path, held: list[dict[str, Tensor]]) -> None:
    """What both replicas hold is there once; each has its own running means and random numbers."""
    names = list(FileSystemReader(folder).read_metadata().state_dict_metadata)
    own = {name.partition("/")[2] for name in names if name.startswith("replica ")}
    assert all(f"replica {replica}/{name}" in names and name not in names for replica in range(2) for name in own)
    assert own and all("running" in name or "random" in name or name.endswith("/rest") for name in own), own
    for rank in range(2):
        assert f"rank {rank}/stages/{rank}/norm.running_mean" in own
        assert f"rank {rank}/stages/{rank}/layer.weight" in names
        different = {name for name, tensor in held[rank].items() if not torch.equal(tensor, held[2 + rank][name])}
        assert different and all("running" in name for name in different)


def rank_main() -> None:
    folder, every = Path(sys.argv[1]), int(sys.argv[3]) if "--every" in sys.argv else 0
    kill, calls, dump = os.environ.get("WEFT_KILL"), 0, torch.save
    renamed = commit

    class Killed(FileSystemWriter):
        def write_data(self, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2 and kill == "writing":
                (Path(str(self.path)) / f"__{last}_0.distcp").write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write_data(*arguments)

    def dying(partial: Path, target: Path, *facts: Any) -> None:
        if kill == "renaming" and target.name == "step-000000004":
            os.kill(os.getpid(), signal.SIGKILL)
        renamed(partial, target, *facts)

    last = str(int(os.environ["WORLD_SIZE"]) - 1)
    if kill is not None and (kill == "renaming" or os.environ["RANK"] == last):
        vars(checkpoint).update(FileSystemWriter=Killed)
        vars(files).update(commit=dying)
    optimizer = {"AdamW": torch.optim.AdamW, "AdamA": AdamA}[os.environ.get("WEFT_OPTIMIZER", "AdamW")]
    with join(20, replicas=int(os.environ.get("WEFT_REPLICAS", int(os.environ["WORLD_SIZE"]) // 2))) as session:
        plan = a_plan()
        width = WIDTH + 1 if os.environ.get("WEFT_STAGES") == "wider" else WIDTH
        part = training(plan, session.rank, width, optimizer)
        saving = Checkpoints(folder / "saved", every, "--resume" in sys.argv) if every else None
        folder.mkdir(exist_ok=True)
        found = run_training(plan, session, part, saving)
        state = {f"{s}.{name}": tensor for s, module in part.stages.items()
                 for name, tensor in module.state_dict().items()}
        assert part.masters is not None
        state |= {f"master {i}": master.detach() for i, master in enumerate(part.masters.parameters())}
        dump(state, folder / f"weights-{session.process(session.rank)}.pt")
    if found is not None:
        print(json.dumps(found.losses))


if __name__ == "__main__":
    rank_main()
