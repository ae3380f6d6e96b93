"""Where a model's weights come from: a state dict in memory, a file of torch, files of the safetensors form, or a
folder of either. Whatever it is, names are known at once, and tensors are read one by one, when they are asked for.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.runtime.checkpoint.files import newest
from weft.runtime.checkpoint.tensor_files import TensorFile, TensorFileError, TensorLooks

__all__ = ["State", "Weights", "WeightsError", "weights_of"]

#: What may be given as a state: the tensors by name, or where they are.
State = Mapping[str, Any] | str | os.PathLike[str]
SAFE, TORCH = (".safetensors",), (".pt", ".pth", ".bin", ".ckpt")


class WeightsError(ValueError):
    """Weights that cannot be had; the message says which and from where."""


class Weights(Protocol):
    """Tensors by name. ``where`` says in a sentence what they are of."""

    where: str
    tensors: Mapping[str, TensorLooks]

    def read(self, name: str) -> Tensor:
        """The tensor of that name; not to be written to. Raises :class:`WeightsError`."""


def weights_of(state: State) -> Weights:
    """The tensors of ``state``: a mapping; a ``.pt`` file with one (mapped into memory, so that only what is used is
    read); a ``.safetensors`` file; or a folder with either, in one file or in shards, with or without an index. A
    folder of checkpoints means its newest.

    Raises :class:`WeightsError`.
    """
    if isinstance(state, Mapping):
        return _InMemory(state, "the state dict")
    if not isinstance(state, str | os.PathLike):
        raise WeightsError(f"state is {type(state).__name__}, it must be a state dict, a file or a folder")
    path = Path(state)
    try:
        return _InFolder(_newest(path)) if path.is_dir() else _file(path)
    except TensorFileError as error:
        raise WeightsError(str(error)) from None


def _newest(folder: Path) -> Path:
    return newest(folder) or folder


def _file(path: Path) -> Weights:
    if path.suffix in SAFE:
        return _Safe(path)
    return _InMemory(_loaded(path), str(path))


def _loaded(path: Path) -> Mapping[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(f"{path}: cannot be read as a state dict that torch.save wrote: {said:.200}") from None
    if not isinstance(found, Mapping):
        raise WeightsError(f"{path}: holds {type(found).__name__}, it must hold a state dict")
    return found


class _InMemory:
    def __init__(self, state: Mapping[str, Any], where: str) -> None:
        self.where, self._state = where, state
        self.tensors: Mapping[str, TensorLooks] = {
            str(name): TensorLooks(tuple(value.shape), value.dtype) for name, value in state.items()
            if isinstance(value, Tensor)}

    def read(self, name: str) -> Tensor:
        """See :class:`Weights`."""
        found: Tensor = self._state[name].detach()
        if found.is_meta:
            raise WeightsError(f"{self.where}: {name} is on the meta device, without numbers")
        return found


class _Safe:
    def __init__(self, path: Path) -> None:
        self.where, self._file = str(path), TensorFile(path)
        self.tensors: Mapping[str, TensorLooks] = self._file.tensors

    def read(self, name: str) -> Tensor:
        """See :class:`Weights`."""
        try:
            return self._file.read(name)
        except TensorFileError as error:
            raise WeightsError(str(error)) from None


class _InFolder:
    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._of: dict[str, Weights] = {}
        listed = _index(folder)
        for path in _shards(folder) if listed is None else sorted({folder / name for name in listed.values()}):
            part = _file(path)
            for name in part.tensors:
                if listed is None or listed.get(name) == path.name:
                    self._of[name] = part
        for name, file in (listed or {}).items():
            if name not in self._of:
                raise WeightsError(f"{folder / file}: has no {name}, which the folder's index says is there")
        self.tensors: Mapping[str, TensorLooks] = {name: part.tensors[name] for name, part in self._of.items()}

    def read(self, name: str) -> Tensor:
        """See :class:`Weights`."""
        return self._of[name].read(name)


def _index(folder: Path) -> dict[str, str] | None:
    """The file of each tensor, where the folder says."""
    for pattern in ("*.safetensors.index.json", "*.bin.index.json"):
        for path in sorted(folder.glob(pattern)):
            try:
                found = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
                listed = {str(name): str(file) for name, file in found.items()}
            except (OSError, ValueError, KeyError, AttributeError, TypeError):
                raise WeightsError(f"{path}: is no index of tensors: it must hold weight_map, a file by name") from None
            for file in listed.values():
                if Path(file).name != file:
                    raise WeightsError(f"{path}: names {file}, which is no file of this folder")
            return listed
    return None


def _shards(folder: Path) -> list[Path]:
    for suffixes in (SAFE, TORCH):
        if found := sorted(path for path in folder.iterdir() if path.suffix in suffixes):
            return found
    raise WeightsError(f"{folder}: has no file of weights: none ends in {', '.join((*SAFE, *TORCH))}")
