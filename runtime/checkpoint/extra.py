"""What else a training has that goes on: schedulers of the learning rate, scalers, loaders with a place.

Anything with ``state_dict`` and ``load_state_dict``, by a name of the user's. States are written as JSON, so they are
numbers, texts and containers of these; a tensor of one number is a number. Whether a container was a tuple, or a key a
number, is known from the state that the object has when it is given one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from weft.runtime.checkpoint.optimizer_state import OptimizerStateError

__all__ = ["Extra", "extra_of", "give_extra"]

#: Objects by name.
Extra = Mapping[str, Any]
PAIRS = "weft pairs"  # the key beside which a mapping stands whose keys are no texts


def extra_of(extra: Extra) -> dict[str, Any]:
    """The states of ``extra``, as JSON has them.

    Raises :class:`~weft.runtime.checkpoint.optimizer_state.OptimizerStateError` for an object without a state, and for
    a state that holds other things.
    """
    for name, each in extra.items():
        if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
            raise OptimizerStateError(f"extra has {type(each).__name__} as {name!r}, which has no state_dict and "
                                      "load_state_dict")
    return {name: _plain(each.state_dict(), name) for name, each in extra.items()}


def give_extra(extra: Extra, states: Mapping[str, Any]) -> None:
    """Bring ``extra`` to these states. Raises :class:`~weft.runtime.checkpoint.optimizer_state.OptimizerStateError` for
    one that was not saved, or that does not take its state."""
    for name, each in extra.items():
        if name not in states:
            raise OptimizerStateError(f"nothing was saved as {name!r} (there is {', '.join(states) or 'nothing'}): "
                                      "give extra as it was saved with")
        try:
            each.load_state_dict(_like(states[name], each.state_dict()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptimizerStateError(f"{type(each).__name__} does not take what was saved as {name!r}: "
                                      f"{type(error).__name__}: {' '.join(str(error).split()):.200}") from error


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, Mapping):
        pairs = [(key, _plain(item, f"{where}.{key}")) for key, item in value.items()]
        return dict(pairs) if all(type(key) is str for key, _ in pairs) else {PAIRS: [list(pair) for pair in pairs]}
    if isinstance(value, tuple | list):
        return [_plain(item, where) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise OptimizerStateError(f"{where} is {type(value).__name__}, which cannot be saved: states may hold numbers, "
                              "texts and containers of these")


def _like(value: Any, now: Any) -> Any:
    """``value``, of JSON, in the types that the object has now."""
    if isinstance(value, dict):
        known = now if isinstance(now, Mapping) else {}
        if set(value) == {PAIRS}:
            found = {key: _like(item, known.get(key)) for key, item in value[PAIRS]}
            return type(now)(found) if isinstance(now, dict) else found
        return {key: _like(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, list):
        inner = [_like(item, like) for item, like in zip(
            value, now if isinstance(now, list | tuple) and len(now) == len(value) else [None] * len(value),
            strict=True)]
        return tuple(inner) if isinstance(now, tuple) else inner
    return value
