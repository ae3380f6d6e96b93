"""Sources of a model's weights: a state dict in memory, a torch file, safetensors files, or a folder of either. In all
of them names are known without reading tensors, which are read one by one, on request.

A safetensors file has eight bytes with the length of a JSON header, the header, and then the data of the tensors. Model
hubs use this format, and any reader of it can read the files written here. It cannot contain code, and each tensor can
be read separately; so checkpoints by names use it too.

The parameters and buffers of a model are listed without duplicates, each with all its names.
"""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from weft.runtime.checkpoint.files import newest

#: A state as an argument: the tensors by name, or a path to them.
State = Mapping[str, Any] | str | os.PathLike[str]
SAFE, TORCH = (".safetensors",), (".pt", ".pth", ".bin", ".ckpt")


class Weights(Protocol):
    """Tensors by name. ``where`` describes their source in an error message."""

    where: str
    tensors: Mapping[str, TensorMetadata]

    def read(self, name: str) -> Tensor:
        """The tensor of that name; read-only. Raises :class:`WeightsError`."""


def weights_of(state: State) -> Weights:
    """The tensors of ``state``: a mapping; a ``.pt`` file with one (memory-mapped, so that only the tensors used are
    read); a ``.safetensors`` file; or a folder with either, in one file or in shards, with or without an index. A
    folder of checkpoints means its newest.

    Raises :class:`WeightsError`.
    """
    if isinstance(state, Mapping):
        return _InMemory(state, "the state dict")
    if not isinstance(state, str | os.PathLike):
        raise WeightsError(f"state is {type(state).__name__}, it must be a state dict, a file or a folder")
    path = Path(state)
    return _InFolder(newest(path) or path) if path.is_dir() else _file(path)


def _file(path: Path) -> Weights:
    if path.suffix in SAFE:
        return TensorFile(path)
    return _InMemory(_loaded(path), str(path))


def _loaded(path: Path) -> Mapping[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(f"{path}: cannot be read as a state dict that torch.save wrote: {reason:.200}") from None
    if not isinstance(found, Mapping):
        raise WeightsError(f"{path}: holds {type(found).__name__}, it must hold a state dict")
    return found


class _InMemory:
    def __init__(self, state: Mapping[str, Any], where: str) -> None:
        self.where, self._state = where, state
        self.tensors: Mapping[str, TensorMetadata] = {
            str(name): TensorMetadata(tuple(value.shape), value.dtype) for name, value in state.items()
            if isinstance(value, Tensor)}

    def read(self, name: str) -> Tensor:
        """See :class:`Weights`."""
        found: Tensor = self._state[name].detach()
        if found.is_meta:
            raise WeightsError(f"{self.where}: {name} is on the meta device, without numbers")
        return found


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
        self.tensors: Mapping[str, TensorMetadata] = {name: part.tensors[name] for name, part in self._of.items()}

    def read(self, name: str) -> Tensor:
        """See :class:`Weights`."""
        return self._of[name].read(name)


def _index(folder: Path) -> dict[str, str] | None:
    """The file of each tensor, if the folder has an index."""
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


#: The names of data types in the header.
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "C128": torch.complex128,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64}
CODES = {dtype: code for code, dtype in TYPES.items()}
LONGEST = 100 * 2**20  # bytes of a header; a longer one is not a header
NOTES = "__metadata__"


class WeightsError(ValueError):
    """Weights cannot be read or written; the message has the name and the source."""


class TensorMetadata(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class TensorFile:
    """The tensors in ``path``. ``notes``: the texts beside them, by name.

    Raises :class:`WeightsError` for a file that cannot be read, or is not a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        try:
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if not 2 <= size <= min(LONGEST, path.stat().st_size - 8):
                    raise WeightsError(f"{path}: is no safetensors file: its header cannot be {size} bytes long")
                header = json.loads(file.read(size))
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"{path}: is no safetensors file: its header is no JSON") from None
        if not isinstance(header, dict):
            raise WeightsError(f"{path}: is no safetensors file: its header is no object")
        notes = header.pop(NOTES, {})
        self.notes: Mapping[str, str] = notes if isinstance(notes, dict) else {}
        entries = {name: self._entry(name, entry, path.stat().st_size - 8 - size) for name, entry in header.items()}
        self.tensors: Mapping[str, TensorMetadata] = {name: looks for name, (looks, _) in entries.items()}
        self._places = {name: 8 + size + begin for name, (_, begin) in entries.items()}

    def read(self, name: str) -> Tensor:
        """The tensor of that name, in newly allocated memory. Raises :class:`WeightsError` for a truncated file."""
        looks = self.tensors[name]
        found = torch.empty(looks.shape, dtype=looks.dtype)
        if found.numel():
            target = _bytes(found)
            try:
                with open(self.path, "rb") as file:
                    file.seek(self._places[name])
                    count = file.readinto(target)
            except OSError as error:
                raise WeightsError(f"{self.path}: cannot be read: {error.strerror}") from None
            if count != found.nbytes:
                raise WeightsError(f"{self.path}: ends within {name}")
        return found

    def _entry(self, name: str, entry: Any, length: int) -> tuple[TensorMetadata, int]:
        try:
            dtype, shape = TYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            raise WeightsError(f"{self.path}: the header says of {name} no type, shape and place that are "
                               "known") from None
        if not whole or end > length or end - begin != math.prod(shape) * dtype.itemsize:
            raise WeightsError(f"{self.path}: {name} lies at {begin} to {end} of {length} bytes, which is not where "
                               f"{shape} of {dtype} can be: the file is damaged, or cut off")
        return TensorMetadata(shape, dtype), begin


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write ``tensors`` and ``notes`` to ``path``, and sync it to the disk. Raises ``OSError``, and
    :class:`WeightsError` for a data type that the format does not have."""
    header: dict[str, Any] = {NOTES: dict(notes)} if notes else {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in CODES:
            raise WeightsError(f"{name} is of {tensor.dtype}, which cannot be saved")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin aligned for any data type
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            if tensor.numel():
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                file.write(_bytes(flat))
        file.flush()
        os.fsync(file.fileno())


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of ``tensor``, which is contiguous."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)


class NamedTensor(NamedTuple):
    """A parameter or buffer; ``names`` are in the model's order, and the first is the main one. ``is_saved``: it is
    part of the model's state dict."""

    names: tuple[str, ...]
    tensor: Tensor
    is_saved: bool

    @property
    def name(self) -> str:
        """Its main name."""
        return self.names[0]


def named_tensors(model: nn.Module, loss: nn.Module | None = None) -> list[NamedTensor]:
    """The parameters and buffers of ``model``, and those of ``loss`` with the prefix ``loss.``; tied ones are listed
    once."""
    found: dict[int, NamedTensor] = {}
    parts = model.named_modules(remove_duplicate=False)
    if loss is not None:
        parts = chain(parts, loss.named_modules(prefix="loss", remove_duplicate=False))
    for prefix, module in parts:
        passing = module._non_persistent_buffers_set
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                whole, saved = f"{prefix}.{name}" if prefix else name, name not in passing
                before = found.get(id(tensor), NamedTensor((), tensor, False))
                found[id(tensor)] = NamedTensor((*before.names, whole), tensor, before.is_saved or saved)
    return list(found.values())


def fitted(weights: Weights, wanted: Collection[NamedTensor], model: str, strict: bool = True,
           whole: bool = True) -> Mapping[str, str]:
    """The name in ``weights`` of each of the ``wanted`` tensors of ``model``, by its main name in the model.

    Raises :class:`~weft.runtime.checkpoint.weights.WeightsError` for one of another shape, with ``whole`` for one that
    is missing and is saved with the model, and with ``strict`` for one that the model does not have.
    """
    found: dict[str, str] = {}
    for item in wanted:
        there = next((name for name in item.names if name in weights.tensors), None)
        if there is None:
            if item.is_saved and whole:
                raise WeightsError(f"{weights.where} has no {item.name}: give the whole state of {model}")
            continue
        shape = weights.tensors[there].shape
        if shape != tuple(item.tensor.shape):
            raise WeightsError(f"{weights.where}: {there} has the shape {_shown(shape)}, but in {model} it has "
                               f"{_shown(item.tensor.shape)}: give the state of this model")
        found[item.name] = there
    known = {name for item in wanted for name in item.names}
    for name in weights.tensors:
        if strict and name not in known:
            raise WeightsError(f"{weights.where} has {name}, which {model} does not have: give the state of this model")
    return found


def _shown(shape: Collection[int]) -> str:
    return f"({', '.join(map(str, shape))})"
