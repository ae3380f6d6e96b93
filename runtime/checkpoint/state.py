"""The state of a rank as tensors by name: containers and values other than tensors are pickled into one of them.

They are read by torch's restricted unpickler for weights. A state that it would not read is refused when it is saved.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class NotPlain(ValueError):
    """Reading the state would call a function; the message names it."""


@dataclass(frozen=True)
class _Name:
    """The placeholder of the tensor with this name."""

    name: str


#: Its names in pickles, including those of earlier versions.
_KNOWN: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    _Name, (_Name, "runtime.checkpoint._Name"), (_Name, "runtime.checkpoint_state._Name")]


def flat(value: Any, name: str) -> dict[str, Tensor]:
    """``value`` (dicts, lists, tuples and their items) as tensors whose names begin with ``name``, with all other
    values in one of them. Raises :class:`NotPlain`."""
    tensors: dict[str, Tensor] = {}
    rest = io.BytesIO()
    try:
        torch.save(_without_tensors(value, name, tensors), rest)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NotPlain(str(error)) from None
    _unpickled(rest.getvalue())
    tensors[f"{name}/rest"] = torch.frombuffer(bytearray(rest.getvalue()), dtype=torch.uint8)
    return tensors


def nested(tensors: Mapping[str, Tensor], name: str) -> Any:
    """The value that :func:`flat` turned into ``tensors``. Raises :class:`NotPlain`, and ``KeyError`` if one is
    missing."""
    return _with_tensors(_unpickled(tensors[f"{name}/rest"].numpy().tobytes()), tensors)


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` with its tensors moved to ``tensors``."""
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


def _unpickled(data: bytes) -> Any:
    """The value that ``torch.save`` turned into ``data``, if plain: none of it is called. Raises :class:`NotPlain`."""
    try:
        with torch.serialization.safe_globals(_KNOWN):
            return torch.load(io.BytesIO(data), weights_only=True)
    except pickle.UnpicklingError as error:
        raise NotPlain(_unknown(error)) from None


def _unknown(error: pickle.UnpicklingError) -> str:
    """The refused type, from torch's long message about it."""
    found = re.search(r"(?:GLOBAL|global|class) ([\w.]+)", str(error))
    return str(error).splitlines()[0] if found is None else found[1]
