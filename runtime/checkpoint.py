"""Checkpoints of a training run, and going on from the last one as if nothing had happened.

Each is a folder ``step-000000012`` (after 12 batches) that ``torch.distributed.checkpoint`` writes, all ranks together.
It is written under another name, synced to the disk, marked complete (``complete.json``: what it belongs to, and every
file with its size), and only then renamed, which is atomic. So at any moment, also when the machine is killed, there
are whole checkpoints and perhaps a ``.partial`` folder, which the next one clears away.

A rank's part is its modules' parameters and buffers, its optimizer's state (and master weights), and the state of the
random number generators. Data is asked for by batch and micro-batch, so there is nothing to remember about it.

Replicas of a plan hold the same weights and optimizer state, and their own buffers and random numbers. What is equal,
bit for bit, in all of them (they compare hashes) is saved once: it goes by one name, and the writing is divided among
them. So nothing has to be assumed about what a module or an optimizer keeps.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from runtime.plan import Plan
from runtime.session import Session, SessionError
from runtime.signature import signatures
from runtime.training import Training

__all__ = ["Checkpoints", "latest"]

CHECKPOINT_FORMAT = "weft.checkpoint/2"
WITHOUT_REPLICAS = "weft.checkpoint/1"  # each process has all of its own there; for one replica there is no difference
KEPT = 2  # whole checkpoints that stay
MARKER = "complete.json"


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints go: into ``folder``, after every ``every`` batches and after the last. With ``resume``, the run
    goes on from the newest whole one there, if there is any."""

    folder: Path
    every: int = 0
    resume: bool = False

    def restore(self, plan: Plan, session: Session, training: Training) -> int:
        """Bring ``training`` to the newest whole checkpoint: how many batches it has behind it (0 without one). All
        ranks must call it together.

        Raises :class:`~runtime.session.SessionError` if that checkpoint is of another plan or another model, or not all
        ranks see it.
        """
        if not self.resume:
            return 0
        here = latest(self.folder)
        seen = session.exchange(None if here is None else here.name, "looking for a checkpoint")
        if len(set(seen)) > 1:
            odd = next(rank for rank, name in enumerate(seen) if name != seen[0])
            raise SessionError(f"{self.folder}: the newest checkpoint is {seen[0]} for rank 0, but {seen[odd]} for "
                               f"rank {odd}; all ranks must see one folder")
        if here is None:
            return 0
        marker = _marker(here)
        assert marker is not None
        if marker.get("replicas", 1) != session.replicas:
            raise SessionError(f"{here}: the checkpoint is of {marker.get('replicas', 'one or more')} replicas, now "
                               f"there are {session.replicas}: their batches differ; go on with as many")
        for rank, found in marker["signatures"].items():
            if rank == str(session.rank) and found != dict(signatures(training)):
                raise SessionError(f"{here}: the checkpoint is of another model: rank {rank} had the stages {found}, "
                                   f"now {dict(signatures(training))}")
        if marker["plan"] != plan.digest:
            raise SessionError(f"{here}: the checkpoint is of another plan; go on with the plan it was made with")
        session.watch.doing(f"reading {here}", range(session.world))
        _load(here, session, training)
        session.barrier("to have read the checkpoint")
        return int(marker["step"])

    def save(self, plan: Plan, session: Session, training: Training, step: int) -> None:
        """Save ``training`` after batch ``step``, if one is due. All ranks must call it together."""
        done = step + 1
        if not self.every or (done % self.every and done != training.steps):
            return
        target = self.folder / f"step-{done:09d}"
        partial = self.folder / f".{target.name}.partial"
        theirs = session.exchange(dict(signatures(training)), f"saving {target}")
        first = session.process(session.rank) == 0
        if first:
            try:
                for left in self.folder.glob(".step-*.partial"):
                    shutil.rmtree(left)
                partial.mkdir(parents=True)
            except OSError as error:
                raise SessionError(f"{partial}: cannot be written: {error.strerror}") from None
        session.barrier(f"to save {target}")
        state = _once(session, _state(session, training))
        try:
            save(state, storage_writer=FileSystemWriter(partial, sync_files=True))
            if first:
                _commit(partial, target, {"format": CHECKPOINT_FORMAT, "plan": plan.digest, "step": done,
                                          "replicas": session.replicas,
                                          "signatures": {str(rank): found for rank, found in enumerate(theirs)}})
                for old in _whole(self.folder)[KEPT:]:
                    shutil.rmtree(old)
        except (CheckpointException, OSError) as error:
            raise SessionError(f"{partial}: cannot be written: {_reason(error)}") from None
        session.barrier(f"to have saved {target}")


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in ``folder``."""
    return next(iter(_whole(folder)), None)


def _whole(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("step-*"), reverse=True) if _marker(path) is not None]


def _marker(path: Path) -> dict[str, Any] | None:
    """What ``path`` says of itself; ``None`` unless everything it says is there."""
    try:
        marker = json.loads((path / MARKER).read_text())
        whole = marker["format"] in (CHECKPOINT_FORMAT, WITHOUT_REPLICAS) and all(
            (path / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return marker if whole else None


def _reason(error: CheckpointException | OSError) -> str:
    """What was wrong, on which process. (A ``CheckpointException`` is no ``Exception``: nobody else would catch it.)"""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    process, (first, _) = min(error.failures.items(), key=lambda item: item[0])
    return f"{(str(first) or type(first).__name__).splitlines()[0]} (process {process})"


def _commit(partial: Path, target: Path, facts: dict[str, Any]) -> None:
    files = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    with open(partial / MARKER, "w", encoding="utf-8") as marker:
        json.dump({**facts, "files": files}, marker, indent=1)
        marker.flush()
        os.fsync(marker.fileno())
    _sync(partial)
    earlier = target.with_name(f".{target.name}.earlier.partial")
    if target.exists():  # a run without --resume comes to a batch that an earlier one has saved
        os.rename(target, earlier)
    os.rename(partial, target)
    _sync(target.parent)
    shutil.rmtree(earlier, ignore_errors=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _state(session: Session, training: Training) -> dict[str, Tensor]:
    """This rank's part, as tensors by names that no other rank of its replica uses for something else."""
    parts: dict[str, Any] = {
        "stages": {str(stage): module.state_dict() for stage, module in training.stages.items()},
        "optimizer": None if training.optimizer is None else training.optimizer.state_dict(),
        "masters": None if training.masters is None else training.masters.parameters(),
        "random": [torch.get_rng_state(), random.getstate(),
                   torch.cuda.get_rng_state(session.device) if session.device.type == "cuda" else None],
    }
    tensors: dict[str, Tensor] = {}
    prefix = _prefix(session)
    rest = io.BytesIO()
    torch.save(_without_tensors(parts, prefix, tensors), rest)
    tensors[f"{prefix}/rest"] = torch.frombuffer(bytearray(rest.getvalue()), dtype=torch.uint8)
    return tensors


def _once(session: Session, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` by names that all replicas have in common where they hold the same, else by names of their own."""
    if session.replicas == 1:
        return dict(tensors)
    mine = {name: _hash(tensor) for name, tensor in tensors.items()}
    session.watch.doing("comparing what is to be saved with the other replicas", [
        replica * session.world + session.rank for replica in range(session.replicas)])
    found = [mine] * session.replicas
    dist.all_gather_object(found, mine, group=session.counterparts())
    return {name if all(other.get(name) == mine[name] for other in found) else _own(session) + name: tensor
            for name, tensor in tensors.items()}


def _hash(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.blake2b(data.data, digest_size=16).hexdigest()}"


def _load(path: Path, session: Session, training: Training) -> None:
    reader, prefix, own = FileSystemReader(path), _prefix(session) + "/", _own(session)
    found: dict[str, Any] = {}
    for name, facts in reader.read_metadata().state_dict_metadata.items():
        if name.removeprefix(own).startswith(prefix):
            assert isinstance(facts, TensorStorageMetadata)
            found[name] = torch.empty(facts.size, dtype=facts.properties.dtype)
    try:
        load(found, storage_reader=reader)
    except CheckpointException as error:
        raise SessionError(f"{path}: cannot be read: {_reason(error)}; delete this folder to go on from the checkpoint "
                           "before it") from None
    tensors = {name.removeprefix(own): tensor for name, tensor in found.items()}
    rest = io.BytesIO(tensors[f"{prefix}rest"].numpy().tobytes())
    parts = _with_tensors(torch.load(rest, weights_only=False), tensors)
    for stage, module in training.stages.items():
        module.load_state_dict(parts["stages"][str(stage)])
    if training.optimizer is not None:
        training.optimizer.load_state_dict(parts["optimizer"])
    if training.masters is not None:
        for master, saved in zip(training.masters.parameters(), parts["masters"], strict=True):
            master.data.copy_(saved)
    on_cpu, python, on_gpu = parts["random"]
    torch.set_rng_state(on_cpu)
    random.setstate(python)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu, session.device)


def _prefix(session: Session) -> str:
    return f"rank {session.rank}"


def _own(session: Session) -> str:
    """What the names begin with of what is this replica's alone."""
    return f"replica {session.replica}/"


@dataclass(frozen=True)
class _Name:
    """Stands for the tensor of that name."""

    name: str


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` (dicts, lists, tuples and what they hold) with its tensors moved to ``tensors``."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
        return _Name(name)
    if isinstance(value, Mapping):
        return {key: _without_tensors(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(item, f"{name}/{i}", tensors) for i, item in enumerate(value))
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, _Name):
        return tensors[value.name]
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value
