"""The states of optimizers, schedulers and loaders as JSON: numbers, texts and containers of these, and back in the
types of the current state. JSON has no tuples, and no keys that are numbers.

Further objects with state in a training: schedulers of the learning rate, scalers, loaders with a position.

Any object with ``state_dict`` and ``load_state_dict``, by a name of the user's. States are written as JSON, so they are
numbers, texts and containers of these; a tensor of one number is a number. Whether a container was a tuple, or a key a
number, follows from the object's state at loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PAIRS = "weft pairs"  # the key of the items of a mapping whose keys are not texts


class OptimizerStateError(ValueError):
    """A state that cannot be saved, or does not fit; one sentence."""


def plain(value: Any, where: str) -> Any:
    """``value``, called ``where``, as JSON; a tensor of one number is a number.

    Raises :class:`OptimizerStateError` for anything else.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, Mapping):
        pairs = [(key, plain(item, f"{where}.{key}")) for key, item in value.items()]
        return dict(pairs) if all(type(key) is str for key, _ in pairs) else {PAIRS: [list(pair) for pair in pairs]}
    if isinstance(value, tuple | list):
        return [plain(item, where) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise OptimizerStateError(f"{where} is {type(value).__name__}, which cannot be saved: a state may hold numbers, "
                              "texts and containers of these")


def like(value: Any, now: Any) -> Any:
    """``value``, of JSON, in the types of ``now``."""
    if isinstance(now, Tensor) and isinstance(value, int | float):
        return torch.full_like(now, value)
    if isinstance(value, dict):
        known = now if isinstance(now, Mapping) else {}
        if set(value) == {PAIRS}:
            found = {key: like(item, known.get(key)) for key, item in value[PAIRS]}
            return type(now)(found) if isinstance(now, dict) else found
        return {key: like(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, list):
        inner = [like(item, old) for item, old in zip(
            value, now if isinstance(now, list | tuple) and len(now) == len(value) else [None] * len(value),
            strict=True)]
        return tuple(inner) if isinstance(now, tuple) else inner
    return value


#: Objects by name.
Extra = Mapping[str, Any]


def extra_of(extra: Extra) -> dict[str, Any]:
    """The states of ``extra``, as JSON.

    Raises :class:`~weft.runtime.checkpoint.plain.OptimizerStateError` for an object without a state, and for
    a state with other values.
    """
    for name, each in extra.items():
        if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
            raise OptimizerStateError(f"extra has {type(each).__name__} as {name!r}, which has no state_dict and "
                                      "load_state_dict")
    return {name: plain(each.state_dict(), name) for name, each in extra.items()}


def give_extra(extra: Extra, states: Mapping[str, Any]) -> None:
    """Set ``extra`` to these states. Raises :class:`~weft.runtime.checkpoint.plain.OptimizerStateError` for an object
    that was not saved, or that rejects its state."""
    for name, each in extra.items():
        if name not in states:
            raise OptimizerStateError(f"nothing was saved as {name!r} (there is {', '.join(states) or 'nothing'}): "
                                      "give extra as it was saved with")
        try:
            each.load_state_dict(like(states[name], each.state_dict()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptimizerStateError(f"{type(each).__name__} does not take what was saved as {name!r}: "
                                      f"{type(error).__name__}: {' '.join(str(error).split()):.200}") from error
