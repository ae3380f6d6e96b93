"""An optimizer's state by parameter name: so it can be loaded into an optimizer of another rank, which has other
parameters in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from weft.runtime.checkpoint.plain import OptimizerStateError, like, plain
from weft.runtime.train.sharding import shared_as, whole_of

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
    """The optimizer of this process's part of the parameters: ``optimizer``, or the local one of torch's
    ``ZeroRedundancyOptimizer``, which divides them among copies."""
    found = getattr(optimizer, "optim", None)
    return found if divides(optimizer) and isinstance(found, Optimizer) else optimizer


def divides(optimizer: Optimizer) -> bool:
    """Whether each process has the states of a part of its parameters."""
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
    for asked, group in zip(whole.param_groups, optimizer.param_groups, strict=True):
        own = {key: plain(value, f"the option {key}")
               for key, value in {**group, **asked}.items() if key not in NO_OPTIONS}  # schedulers set the whole's
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
    """Whether it is a placeholder on a rank that trains nothing."""
    return not parameter.numel() and id(parameter) not in names


def _name(names: Mapping[int, str], parameter: Tensor) -> str:
    if id(parameter) not in names:
        raise OptimizerStateError(f"the optimizer has a parameter of the shape {tuple(parameter.shape)} that is none "
                                  "of this pipeline's: make it of pipe.parameters()")
    return names[id(parameter)]
