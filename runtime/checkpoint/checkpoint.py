"""Checkpoints of a training run, and exact resumption from the newest one.

A checkpoint is a folder ``step-000000012`` (after 12 batches) that all ranks write with
``torch.distributed.checkpoint``. It is written under another name, synced to the disk, marked complete
(``complete.json``: its plan and model, and the size and checksum of every file), and then renamed atomically. So after
a crash at any time there are complete checkpoints, and possibly a ``.partial`` folder, which the next save removes. A
damaged checkpoint is never loaded (:mod:`weft.runtime.checkpoint.files`), and loading never executes code from one.

A rank's part is its modules' parameters and buffers, its optimizer's state (and master weights), and the state of the
random number generators. Data is requested by batch and micro-batch, so its position needs no state.

Replicas of a plan have the same weights and optimizer state, but their own buffers and random numbers. Tensors that are
bitwise equal in all replicas (their hashes are compared) are saved once, with the writing divided among the replicas.
So no assumption is made about the state of a module or an optimizer.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from weft.runtime.checkpoint.files import DamagedCheckpoint, begin_partial, complete, damaged, newest, proven
from weft.runtime.checkpoint.signature import signatures
from weft.runtime.checkpoint.state import NotPlain, flat, nested
from weft.runtime.interface.fitting import parameters_of
from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.ranks.session import Session, SessionError

KEPT = 2  # complete checkpoints to keep

#: All classes in the metadata of ``torch.distributed.checkpoint``, beside torch's data types.
_KNOWN = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


@dataclass(frozen=True)
class Checkpoints:
    """Saves to ``folder`` after every ``every`` batches and after the last. ``resume``: continue from the newest
    checkpoint there, if any; ``unchecked``: also from one of an earlier version of weft, without checksums."""

    folder: Path
    every: int = 0
    resume: bool = False
    unchecked: bool = False

    def restore(self, plan: Plan, session: Session, training: Training) -> int:
        """Load the newest checkpoint into ``training``; returns its number of batches (0 without one). All ranks must
        call it together.

        Raises :class:`~weft.runtime.ranks.session.SessionError` if that checkpoint is damaged, of another plan, model
        or optimizer, or not visible to all ranks; and where there is one, but ``resume`` is not set.
        """
        here = newest(self.folder)
        if not self.resume:
            self._require_empty(session, here)
            return 0
        marker = proven(session, self.folder, here, self.unchecked)
        if marker is None or here is None:
            return 0
        if (marker.replicas or 1) != session.replicas:
            raise SessionError(f"{here}: the checkpoint is of {marker.replicas or 'one or more'} replicas, now "
                               f"there are {session.replicas}: their batches differ; go on with as many")
        now = session.exchange(dict(signatures(training)), "comparing the checkpoint with the model")
        if len(marker.signatures) != len(now):
            raise SessionError(f"{here}: the checkpoint is of {len(marker.signatures)} ranks, now there are {len(now)}")
        for rank, stages in enumerate(now):
            if marker.signatures.get(str(rank)) != stages:
                raise SessionError(f"{here}: the checkpoint is of another model: rank {rank} had the stages "
                                   f"{marker.signatures.get(str(rank))}, now {stages}")
        kinds = session.exchange(_kind(training), "comparing the checkpoint with the optimizers")
        for rank, kind in enumerate(kinds):
            if marker.optimizers is not None and (saved := marker.optimizers.get(str(rank))) != kind:
                raise SessionError(f"{here}: rank {rank} was trained with {saved}, now it has {kind}: give the "
                                   "optimizer that was saved, over weights of the same type, or another folder")
        if marker.plan != plan.digest:
            raise SessionError(f"{here}: the checkpoint is of another plan; go on with the plan it was made with")
        session.watch.doing(f"reading {here}", range(session.processes))
        _load(here, session, training)
        session.barrier("to have read the checkpoint")
        return marker.step

    def _require_empty(self, session: Session, here: Path | None) -> None:
        """Refuse to start a new run in a folder with checkpoints of an earlier one: removing old checkpoints keeps the
        highest numbers, which would be the earlier run's."""
        seen = session.everywhere(None if here is None else here.name, "looking for a checkpoint")
        if self.every and (name := next(filter(None, seen), None)) is not None:
            raise SessionError(f"{self.folder}: holds a checkpoint of an earlier run, {name}: go on from it with "
                               "--resume, or give another folder")

    def due(self, training: Training, step: int) -> bool:
        """Whether ``training`` must be saved after batch ``step``."""
        done = step + 1
        return bool(self.every) and (not done % self.every or done == training.steps)

    def save(self, plan: Plan, session: Session, training: Training, step: int) -> None:
        """Save ``training`` after batch ``step``, if one is due. All ranks must call it together."""
        if not self.due(training, step):
            return
        done = step + 1
        target = self.folder / f"step-{done:09d}"
        theirs = session.exchange((dict(signatures(training)), _kind(training)), f"saving {target}")
        partial = begin_partial(target, session)
        state = _once(session, _state(session, training))
        session.watch.doing(f"saving {target}", range(session.processes))
        try:
            save(state, storage_writer=FileSystemWriter(partial, sync_files=True))
            complete(session, partial, target, {
                "plan": plan.digest, "step": done, "replicas": session.replicas,
                "signatures": {str(rank): found for rank, (found, _) in enumerate(theirs)},
                "optimizers": {str(rank): kind for rank, (_, kind) in enumerate(theirs)}}, KEPT)
        except (CheckpointException, OSError) as error:
            raise SessionError(f"{partial}: cannot be written: {_reason(error, partial)}") from None
        session.barrier(f"to have saved {target}")


def _kind(training: Training) -> str:
    """The optimizer of this rank, and the types of its parameters."""
    if training.optimizer is None:
        return "no optimizer"
    types = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters_of(training.optimizer)})
    return f"{type(training.optimizer).__name__} of {' and '.join(types)}"


def _reason(error: CheckpointException | OSError, written: Path | None = None) -> str:
    """The cause of the error and its process. (``CheckpointException`` is no subclass of ``Exception``, so other
    handlers do not catch it.) ``written``: a folder to test for writing, as torch's writer does not report the cause.
    """
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    process, (first, _) = min(error.failures.items(), key=lambda item: item[0])
    reason = (str(first) or type(first).__name__).splitlines()[0]
    if written is not None and _OF_THE_WRITER in reason:
        with suppress(OSError):
            reason = ("a file was cut off, as on a disk that is full or beyond a quota: "
                      f"{disk_usage(written).free} bytes are free")
    return f"{reason} (process {process})"


#: Part of every message of torch's writer of tensors.
_OF_THE_WRITER = "inline_container"


def _state(session: Session, training: Training) -> dict[str, Tensor]:
    """This rank's part, as tensors by names that are unique among the ranks of its replica."""
    parts: dict[str, Any] = {
        "stages": {str(stage): module.state_dict() for stage, module in training.stages.items()},
        "optimizer": None if training.optimizer is None else training.optimizer.state_dict(),
        "masters": None if training.masters is None else training.masters.parameters(),
        "random": [torch.get_rng_state(), random.getstate(),
                   torch.cuda.get_rng_state(session.device) if session.device.type == "cuda" else None],
    }
    try:
        return flat(parts, _prefix(session))
    except NotPlain as error:
        raise SessionError(f"rank {session.rank}'s modules or optimizer keep what a checkpoint cannot hold, as reading "
                           f"it would run code: {error}; keep tensors, numbers, texts, lists and dicts of "
                           "them") from None


def _once(session: Session, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` under common names if all replicas have equal values, otherwise under names of this replica."""
    if session.replicas == 1:
        return dict(tensors)
    mine = {name: _hash(tensor) for name, tensor in tensors.items()}
    session.watch.doing("comparing what is to be saved with the other replicas", session.alike)
    found = [mine] * session.replicas
    dist.all_gather_object(found, mine, group=session.counterparts())
    return {name if all(other.get(name) == mine[name] for other in found) else _own(session) + name: tensor
            for name, tensor in tensors.items()}


def _hash(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.blake2b(data.data, digest_size=16).hexdigest()}"


def _load(path: Path, session: Session, training: Training) -> None:
    prefix, own = _prefix(session) + "/", _own(session)
    found: dict[str, Any] = {}
    try:
        reader = SafeReader(path)
        for name, facts in reader.read_metadata().state_dict_metadata.items():
            if name.removeprefix(own).startswith(prefix):
                if not isinstance(facts, TensorStorageMetadata):
                    raise DamagedCheckpoint(f"{path}/.metadata: {name} is no tensor; the checkpoint is not one of weft")
                found[name] = torch.empty(facts.size, dtype=facts.properties.dtype)
        load(found, storage_reader=reader)
        tensors = {name.removeprefix(own): tensor for name, tensor in found.items()}
        _give(training, session, nested(tensors, _prefix(session)))
    except DamagedCheckpoint as error:
        raise SessionError(str(error)) from None
    except NotPlain as error:
        raise SessionError(f"{path}: holds what reading it would run as code: {error}; it is not read") from None
    except (CheckpointException, OSError) as error:
        raise SessionError(f"{path}: cannot be read: {_reason(error)}; delete this folder to go on from the checkpoint "
                           "before it") from None
    except (KeyError, ValueError, RuntimeError) as error:
        raise SessionError(f"{path}: does not fit the model or its optimizer: {type(error).__name__}: "
                           f"{' '.join(str(error).split()):.300}") from error


def _give(training: Training, session: Session, parts: dict[str, Any]) -> None:
    """Set ``training`` and the random number generators to the state ``parts``."""
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
    """The name prefix of tensors that belong to this replica only."""
    return f"replica {session.replica}/"


class SafeReader(FileSystemReader):
    """Reads a checkpoint of tensors; unpickles only the classes that such a checkpoint contains.

    Raises :class:`DamagedCheckpoint` for anything else.
    """

    def read_metadata(self, *arguments: Any, **options: Any) -> Metadata:
        """The metadata, which :class:`FileSystemReader` would unpickle without checks."""
        with open(Path(self.path) / ".metadata", "rb") as file:
            try:
                found = _Unpickler(file).load()
            except DamagedCheckpoint:
                raise
            except Exception as error:  # anything that an unpickler may raise on such bytes
                raise DamagedCheckpoint(damaged(f"{self.path}/.metadata: cannot be read: "
                                                f"{type(error).__name__}: {error}")) from None
        if not isinstance(found, Metadata):
            raise DamagedCheckpoint(damaged(f"{self.path}/.metadata: holds {type(found).__name__}"))
        for info in (found.storage_data or {}).values():
            if Path(info.relative_path).name != str(info.relative_path):
                raise DamagedCheckpoint(damaged(f"{self.path}/.metadata: names {info.relative_path}, which is no file "
                                                "of the checkpoint"))
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = name in _KNOWN.get(module, ())
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise DamagedCheckpoint(damaged(f".metadata names {module}.{name}, which is no part of a checkpoint and may "
                                        "be code of somebody else's"))
