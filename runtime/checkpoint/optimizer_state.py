"""An optimizer's state by parameter name, so that it can be loaded into an optimizer with other parameters, in another
order.

Also the states of further objects with ``state_dict`` and ``load_state_dict``, by the user's names: learning rate
schedulers, scalers, data loaders. These are written as JSON: numbers, texts and containers of them; a tensor with one
element is a number. Tuples and keys that are numbers are restored according to the object's state at loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from weft.runtime.train.sharding import shared_as, whole_of

PAIRS = "weft pairs"  # the key of the items of a mapping whose keys are not texts


class OptimizerStateError(ValueError):
    """A state cannot be saved or does not match; the message is one sentence."""


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
    """The JSON ``value`` with the types of ``now``."""
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

    Raises :class:`~weft.runtime.checkpoint.optimizer_state.OptimizerStateError` for an object without a state, and for
    a state with other values.
    """
    for name, each in extra.items():
        if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
            raise OptimizerStateError(f"extra has {type(each).__name__} as {name!r}, which has no state_dict and "
                                      "load_state_dict")
    return {name: plain(each.state_dict(), name) for name, each in extra.items()}


def give_extra(extra: Extra, states: Mapping[str, Any]) -> None:
    """Restore the states of ``extra``. Raises :class:`OptimizerStateError` for an object that was not saved, or that
    rejects its state."""
    for name, each in extra.items():
        if name not in states:
            raise OptimizerStateError(f"nothing was saved as {name!r} (there is {', '.join(states) or 'nothing'}): "
                                      "give extra as it was saved with")
        try:
            each.load_state_dict(like(states[name], each.state_dict()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptimizerStateError(f"{type(each).__name__} does not take what was saved as {name!r}: "
                                      f"{type(error).__name__}: {' '.join(str(error).split()):.200}") from error


__all__ = ["OptimizerState", "OptimizerStateError", "divides", "give", "own_part", "state_of"]

#: The entries of a parameter group that are not options.
NO_OPTIONS = ("params", "param_names")


class OptimizerState(NamedTuple):
    """``kind``: the optimizer's class. By parameter name: ``tensors`` and ``numbers`` of its state, by their keys, and
    ``options``, those of its group."""

    kind: str
    tensors: Mapping[str, Mapping[str, Tensor]]
    numbers: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Mapping[str, Any]]


def own_part(optimizer: Optimizer) -> Optimizer:
    """The optimizer of this process's part of the parameters: ``optimizer``, the local optimizer of torch's
    ``ZeroRedundancyOptimizer``, which shards states over replicas, or the one that accelerate has wrapped."""
    if type(optimizer).__name__ == "AcceleratedOptimizer":
        return own_part(optimizer.optimizer)  # type: ignore[attr-defined]
    found = getattr(optimizer, "optim", None)
    return found if divides(optimizer) and isinstance(found, Optimizer) else optimizer


def divides(optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` has the states of a part of its parameters only."""
    return type(optimizer).__name__ == "ZeroRedundancyOptimizer"


def state_of(optimizer: Optimizer, names: Mapping[int, str]) -> OptimizerState:
    """The state of ``optimizer``, over parameters whose names are given by ``id``.

    Raises :class:`OptimizerStateError` for a parameter without a name, and for values other than tensors, numbers and
    text.
    """
    tensors: dict[str, dict[str, Tensor]] = {}
    numbers: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    whole, optimizer = optimizer, own_part(optimizer)
    for outer, group in zip(whole.param_groups, optimizer.param_groups, strict=True):
        own = {key: plain(value, f"the option {key}")
               for key, value in {**group, **outer}.items() if key not in NO_OPTIONS}  # schedulers set the whole's
        for parameter in group["params"]:
            if _is_nothing(parameter, names):
                continue
            name = _name(names, parameter)
            state = optimizer.state.get(parameter, {})
            options[name] = own
            tensors[name] = {key: whole_of(value.detach()) for key, value in state.items() if isinstance(value, Tensor)}
            numbers[name] = {key: plain(value, f"{key} of {name}") for key, value in state.items()
                             if not isinstance(value, Tensor)}
    return OptimizerState(type(optimizer).__name__, tensors, numbers, options)


def give(optimizer: Optimizer, names: Mapping[int, str], kind: str, numbers: Mapping[str, Mapping[str, Any]],
         options: Mapping[str, Mapping[str, Any]], tensors: Callable[[str], Mapping[str, Tensor]]) -> None:
    """Set ``optimizer`` to a state as :func:`state_of` returns it; ``tensors`` is called parameter by parameter.

    Raises :class:`OptimizerStateError` for a state of another kind, of other parameters or other groups.
    """
    whole, optimizer = optimizer, own_part(optimizer)
    if kind != type(optimizer).__name__:
        raise OptimizerStateError(f"the state is of an optimizer {kind}, but {type(optimizer).__name__} was given: "
                                  "give one like that which was saved")
    states: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    number = 0
    for group in optimizer.param_groups:
        found: dict[str, Any] | None = None
        numbered = range(number, number + len(group["params"]))
        for number, parameter in zip(numbered, group["params"], strict=True):
            if _is_nothing(parameter, names):
                continue
            name = _name(names, parameter)
            if name not in options:
                raise OptimizerStateError(f"the state has nothing of {name}, which the optimizer updates: it is of "
                                          "another model, or that parameter was frozen")
            if found is not None and found != options[name]:
                raise OptimizerStateError(f"{name} is in one group with parameters that had other options when they "
                                          "were saved: make the groups as they were")
            found = dict(options[name])
            states[number] = {**numbers[name], **{key: shared_as(parameter, value)
                                                  for key, value in tensors(name).items()}}
        number = numbered.stop
        old = {key: value for key, value in group.items() if key not in NO_OPTIONS}
        groups.append({**old, **{key: like(value, old.get(key)) for key, value in (found or {}).items()},
                       "params": list(numbered)})
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    for group, own in zip(whole.param_groups, optimizer.param_groups, strict=True):
        group.update({key: value for key, value in own.items() if key != "params"})


def _is_nothing(parameter: Tensor, names: Mapping[int, str]) -> bool:
    """Whether ``parameter`` is the placeholder on a rank without trained parameters."""
    return not parameter.numel() and id(parameter) not in names


def _name(names: Mapping[int, str], parameter: Tensor) -> str:
    if id(parameter) not in names:
        raise OptimizerStateError(f"the optimizer has a parameter of the shape {tuple(parameter.shape)} that is none "
                                  "of this pipeline's: make it of pipe.parameters()")
    return names[id(parameter)]
