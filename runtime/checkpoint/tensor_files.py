"""Tensors by name in a file of the safetensors form: eight bytes that say how long a header of JSON is, the header, and
behind it the numbers of one tensor after another.

The form is that of the files that model hubs hold, and any reader of it reads what is written here. Nothing in it can
be code, and one tensor is read without the others: so weights come from such files, and checkpoints go into them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["TensorFile", "TensorFileError", "TensorLooks", "write_tensors"]

#: How types of numbers are called in the header.
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "C128": torch.complex128,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64}
CODES = {dtype: code for code, dtype in TYPES.items()}
LONGEST = 100 * 2**20  # bytes of a header; more is no header
NOTES = "__metadata__"


class TensorFileError(ValueError):
    """A file that is not what it should be; the message names it."""


class TensorLooks(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class TensorFile:
    """The tensors in ``path``. ``notes``: texts by name that stand beside them.

    Raises :class:`TensorFileError` for a file that cannot be read, or is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if not 2 <= size <= min(LONGEST, path.stat().st_size - 8):
                    raise TensorFileError(f"{path}: is no safetensors file: its header cannot be {size} bytes long")
                header = json.loads(file.read(size))
        except OSError as error:
            raise TensorFileError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            if isinstance(error, TensorFileError):
                raise
            raise TensorFileError(f"{path}: is no safetensors file: its header is no JSON") from None
        if not isinstance(header, dict):
            raise TensorFileError(f"{path}: is no safetensors file: its header is no object")
        notes = header.pop(NOTES, {})
        self.notes: Mapping[str, str] = notes if isinstance(notes, dict) else {}
        self._places: dict[str, int] = {}
        self.tensors: dict[str, TensorLooks] = {}
        for name, entry in header.items():
            self.tensors[name], begin = self._entry(name, entry, path.stat().st_size - 8 - size)
            self._places[name] = 8 + size + begin

    def read(self, name: str) -> Tensor:
        """The tensor of that name, in memory of its own. Raises :class:`TensorFileError` if the file has been cut."""
        looks = self.tensors[name]
        found = torch.empty(looks.shape, dtype=looks.dtype)
        if found.numel():
            target = _bytes(found)
            try:
                with open(self.path, "rb") as file:
                    file.seek(self._places[name])
                    count = file.readinto(target)
            except OSError as error:
                raise TensorFileError(f"{self.path}: cannot be read: {error.strerror}") from None
            if count != found.nbytes:
                raise TensorFileError(f"{self.path}: ends within {name}")
        return found

    def _entry(self, name: str, entry: Any, length: int) -> tuple[TensorLooks, int]:
        try:
            dtype, shape = TYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            raise TensorFileError(f"{self.path}: the header says of {name} no type, shape and place that are "
                                  "known") from None
        if not whole or end > length or end - begin != math.prod(shape) * dtype.itemsize:
            raise TensorFileError(f"{self.path}: {name} lies at {begin} to {end} of {length} bytes, which is not where "
                                  f"{shape} of {dtype} can be: the file is damaged, or cut off")
        return TensorLooks(shape, dtype), begin


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write ``tensors`` and ``notes`` to ``path``, and sync it to the disk. Raises ``OSError``, and
    :class:`TensorFileError` for a type of numbers that has no name in such files."""
    header: dict[str, Any] = {NOTES: dict(notes)} if notes else {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in CODES:
            raise TensorFileError(f"{name} is of {tensor.dtype}, which cannot be saved")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin where any of their numbers may
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
    """The memory of ``tensor``, which lies in one piece."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
