"""Checkpoints with the model's own names, independent of the pipeline's cut when saved and when loaded.

A checkpoint is a folder ``step-000000012`` (after 12 batches), written under another name, verified by checksums, and
renamed when it is complete, like those of :mod:`weft.runtime.checkpoint.checkpoint`. Every rank writes two files in the
safetensors format: its part of the model (``model-00001-of-00002.safetensors``: parameters, or their master weights,
and the buffers of the state dict; a tensor on several ranks is written by the first), and its part of the training
(``training-...``: the optimizer's state by the parameters' names, the random number state). With the index beside them
(``model.safetensors.index.json``), any reader of model hubs' folders reads the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from weft.runtime.checkpoint.files import Marker, begin_partial, complete, newest, proven
from weft.runtime.checkpoint.optimizer_state import (
    Extra,
    OptimizerState,
    OptimizerStateError,
    divides,
    extra_of,
    give,
    give_extra,
    state_of,
)
from weft.runtime.checkpoint.weights import NamedTensor, TensorFile, WeightsError, fitted, weights_of, write_tensors
from weft.runtime.ranks.session import Session, SessionError

MODEL_FORMAT = "weft.model-checkpoint/1"
INDEX = "model.safetensors.index.json"
NOTE = "weft"  # the text of a rank's part of the training
RANDOM, RANDOM_GPU = "random.cpu", "random.cuda"


class Trained(NamedTuple):
    """The training state of a rank: the ``optimizer``, the ``names`` of its parameters by ``id``, and other objects
    with state, by name."""

    optimizer: Optimizer | None
    names: Mapping[int, str]
    extra: Extra = MappingProxyType({})


def save(session: Session, folder: Path, step: int, model: Mapping[str, Tensor], trained: Trained,
         keep: int | None = None, about: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """Save ``model``, this rank's part of it by name, and ``trained``, as of batch ``step``; returns the checkpoint's
    folder. The last ``keep`` checkpoints stay (``None``: all). The marker records ``about``: ``seed`` of random
    operators; ``dtype``, the types of the modules' parameters; ``phase``, the position in a family of plans. All ranks
    must call it together, also those that have no part.

    Raises :class:`~weft.runtime.ranks.session.SessionError` where the checkpoint cannot be written.
    """
    process, processes = session.process(session.rank), session.processes
    target = folder / f"step-{step:09d}"
    partial = begin_partial(target, session)
    session.watch.doing(f"saving {target}", range(session.processes))
    try:
        part = f"{session.rank + 1:05d}-of-{session.world:05d}.safetensors"
        if not session.copy:  # the other replicas have the same state
            write_tensors(partial / f"model-{part}", model)
        write_tensors(partial / f"training-{process + 1:05d}-of-{processes:05d}.safetensors",
                      *_training(session, trained))
        placed = session.exchange({name: f"model-{part}" for name in model}, f"saving {target}")
        if process == 0:
            listed = {name: file for each in placed for name, file in each.items()}
            (partial / INDEX).write_text(json.dumps({"metadata": {"step": step}, "weight_map": listed}, indent=1),
                                         encoding="utf-8")
        session.barrier(f"to save {target}")
        complete(session, partial, target, {"step": step, "ranks": session.world, "seed": None, **about}, keep,
                 MODEL_FORMAT)
    except OSError as error:
        raise SessionError(f"{partial}: cannot be written: {error.strerror or type(error).__name__}") from None
    except (WeightsError, OptimizerStateError) as error:
        raise SessionError(f"{partial}: cannot be written: {error}") from None
    session.barrier(f"to have saved {target}")
    return target


def find(session: Session, folder: Path) -> Marker | None:
    """The newest checkpoint in ``folder``, or ``folder`` itself if it is one; ``None`` without a checkpoint.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if it is damaged, of another format, or not visible to all
    ranks.
    """
    here = folder if folder.name.startswith("step-") else newest(folder)
    return proven(session, folder, here, wanted=MODEL_FORMAT)


def restore_parameters(found: Marker, parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Set ``parameters``, by name, to their values in ``found``.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for a checkpoint of another model.
    """
    wanted = [NamedTensor((name,), tensor, True) for name, tensor in parameters]
    try:
        weights = weights_of(found.path)
        there = fitted(weights, wanted, "this model", strict=False)
        with torch.no_grad():
            for item in wanted:
                item.tensor.copy_(weights.read(there[item.name]))
    except WeightsError as error:
        raise SessionError(f"the checkpoint is of another model: {error}") from None


def restore_training(session: Session, found: Marker, trained: Trained) -> None:
    """Restore ``trained``, and the random number generators if the number of ranks is the same.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if the saved state does not match.
    """
    path = found.path
    try:
        files = [TensorFile(file) for file in sorted(path.glob("training-*.safetensors"))]
        notes = [json.loads(file.notes[NOTE]) for file in files]
        if trained.optimizer is not None:
            _give(trained.optimizer, trained.names, files, notes)
        same = len(files) == session.processes
        give_extra(trained.extra, notes[session.process(session.rank) if same else 0].get("extra", {}))
        if same:
            file = files[session.process(session.rank)]
            torch.set_rng_state(file.read(RANDOM))
            if session.device.type == "cuda" and RANDOM_GPU in file.tensors:
                torch.cuda.set_rng_state(file.read(RANDOM_GPU), session.device)
    except WeightsError as error:
        raise SessionError(str(error)) from None
    except OptimizerStateError as error:
        raise SessionError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise SessionError(f"{path}: its files of training are not as weft writes them: {type(error).__name__}: "
                           f"{' '.join(str(error).split()):.200}") from error


def _training(session: Session, trained: Trained) -> tuple[dict[str, Tensor], dict[str, str]]:
    state = OptimizerState("", {}, {}, {}) if trained.optimizer is None else state_of(trained.optimizer, trained.names)
    if session.copy and trained.optimizer is not None and not divides(trained.optimizer):
        state = OptimizerState("", {}, {}, {})  # the first copy has the same state
    tensors = {_place(name, key): tensor for name, own in state.tensors.items() for key, tensor in own.items()}
    tensors[RANDOM] = torch.get_rng_state()
    if session.device.type == "cuda":
        tensors[RANDOM_GPU] = torch.cuda.get_rng_state(session.device)
    groups: list[Mapping[str, Any]] = []
    for own in state.options.values():
        if own not in groups:
            groups.append(own)
    note = {"optimizer": state.kind, "groups": groups, "parameters": {
        name: {"group": groups.index(own), "tensors": list(state.tensors[name]), "numbers": dict(state.numbers[name])}
        for name, own in state.options.items()}, "extra": extra_of(trained.extra)}
    return tensors, {NOTE: json.dumps(note)}


def _give(optimizer: Optimizer, names: Mapping[int, str], files: list[TensorFile], notes: list[Any]) -> None:
    file_of = {name: file for file, note in zip(files, notes, strict=True) for name in note["parameters"]}
    entries = {name: entry for note in notes for name, entry in note["parameters"].items()}
    options = {name: note["groups"][entry["group"]] for note in notes for name, entry in note["parameters"].items()}
    kinds = {note["optimizer"] for note in notes if note["parameters"]}
    if not kinds:
        raise OptimizerStateError("it was saved without an optimizer: leave the optimizer out, and begin with a new "
                                  "one")

    def tensors(name: str) -> dict[str, Tensor]:
        return {key: file_of[name].read(_place(name, key)) for key in entries[name]["tensors"]}

    give(optimizer, names, str(min(kinds)), {name: entry["numbers"] for name, entry in entries.items()}, options,
         tensors)


def _place(name: str, key: str) -> str:
    """The name of a tensor of a parameter's state in a file."""
    return f"{name}/{key}"
