"""The state of a rank as tensors by name: what a checkpoint holds of dicts, lists, numbers and texts is one of them.

What is no tensor is pickled, and read again by torch's unpickler for weights, which calls nothing but what such plain
values need. A state that it would not read is refused when it is to be saved.
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
    """A state of which reading would call something; the message names that."""


@dataclass(frozen=True)
class _Name:
    """Stands for the tensor of that name."""

    name: str


#: How it is called in pickles, also in those of earlier versions.
_KNOWN: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    _Name, (_Name, "runtime.checkpoint._Name"), (_Name, "runtime.checkpoint_state._Name")]


def flat(value: Any, name: str) -> dict[str, Tensor]:
    """``value`` (dicts, lists, tuples and what they hold) as tensors whose names begin with ``name``, the rest of it
    among them. Raises :class:`NotPlain`."""
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
    """What :func:`flat` made ``tensors`` of. Raises :class:`NotPlain`, and ``KeyError`` where one is missing."""
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
    """What ``torch.save`` made ``data`` of, if that is plain: nothing in it is called. Raises
    :class:`NotPlain`."""
    try:
        with torch.serialization.safe_globals(_KNOWN):
            return torch.load(io.BytesIO(data), weights_only=True)
    except pickle.UnpicklingError as error:
        raise NotPlain(_unknown(error)) from None


def _unknown(error: pickle.UnpicklingError) -> str:
    """The type that was refused, out of torch's many lines about it."""
    found = re.search(r"(?:GLOBAL|global|class) ([\w.]+)", str(error))
    return str(error).splitlines()[0] if found is None else found[1]
