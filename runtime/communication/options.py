"""The options of a sharded optimizer, checked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from torch import Tensor, nn

from weft.runtime.communication.rules import STATES

_NUMBER: Any = (Real, Tensor)  # as in torch's optimizers
Named = Sequence[tuple[str, nn.Parameter]]


def groups_of(named: Named, defaults: Mapping[str, Any],
              options_of: Callable[[str, nn.Parameter], Mapping[str, Any]] | None) -> Iterator[dict[str, Any]]:
    """Parameters with equal options together: ``params``, their ``names``, and all options.

    Raises ``ValueError`` for an unknown option, and for invalid values.
    """
    found: list[dict[str, Any]] = []
    for name, parameter in named:
        own = {} if options_of is None else dict(options_of(name, parameter))
        for key in own:
            if key not in defaults:
                raise ValueError(f"options_of gives {name!r} {key!r}: it may give {', '.join(defaults)}")
        options = {**defaults, **own}
        _require_values(name, options)
        options["betas"] = tuple(options["betas"])
        entry = next((entry for entry in found if all(entry[key] == options[key] for key in options)), None)
        if entry is None:
            entry = {"params": [], "names": [], **options}
            found.append(entry)
        entry["params"].append(parameter)
        entry["names"].append(name)
    yield from found


def _require_values(name: str, options: Mapping[str, Any]) -> None:
    for key in ("lr", "eps", "weight_decay"):
        if not isinstance(options[key], _NUMBER) or not 0 <= options[key] < math.inf:
            raise ValueError(f"{key} of {name!r} is {options[key]!r}, it must be a number of at least 0")
    betas = options["betas"]
    if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(
            isinstance(beta, _NUMBER) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas of {name!r} are {betas!r}, they must be two numbers of at least 0 and less than 1")


def require_options(named: Named, clip_norm: float | None, bucket_bytes: int) -> None:
    """Raise ``ValueError`` for parameters or options that cannot be trained."""
    if not named:
        raise ValueError("the module has no parameters to train")
    for name, parameter in named:
        if not parameter.is_floating_point():
            raise ValueError(f"the parameter {name!r} is of {parameter.dtype}: only real numbers are trained")
        if parameter.device != named[0][1].device:
            raise ValueError(f"the parameter {name!r} is on {parameter.device}, others are on {named[0][1].device}: a "
                             "rank trains on one device")
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise ValueError(f"clip_norm is {clip_norm}, it must be greater than 0")
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}, it must be at least 1")


def require_fitting(saved: Mapping[str, Any], rule: str, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ``ValueError`` for states of another rule or of other parameters."""
    if saved.get("rule", rule) != rule:
        raise ValueError(f"these are states of the rule {saved['rule']!r}, but the optimizer has {rule!r}")
    for part in ("state", "param_groups"):
        if part not in saved:
            raise ValueError(f"these states have no {part!r}: give what state_dict() gave")
    for number, entry in enumerate(saved["param_groups"]):
        if "params" not in entry:
            raise ValueError(f"group {number} of these states has no 'params': give what state_dict() gave")
    grouped = {name for entry in saved["param_groups"] for name in entry["params"]}
    for name, parameter in parameters.items():
        if name not in saved["state"] or name not in grouped:
            raise ValueError(f"these states have nothing of the parameter {name!r}: give those of this model, by its "
                             "names")
        for key in ("step", *STATES):
            if key not in saved["state"][name]:
                raise ValueError(f"these states have no {key!r} of the parameter {name!r}")
            shape = () if key == "step" else tuple(parameter.shape)
            found = tuple(getattr(saved["state"][name][key], "shape", ()))
            if found != shape:
                raise ValueError(f"{key!r} of the parameter {name!r} is of shape {found}, but the parameter's is "
                                 f"{tuple(parameter.shape)}")
    for name in saved["state"]:
        if name not in parameters:
            raise ValueError(f"these states are also of {name!r}, which the model does not train")


def options_in(saved: Mapping[str, Any], groups: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The saved options of each of ``groups`` of parameters by name, whose options must be equal.

    Raises ``ValueError`` where parameters of one group had different ones.
    """
    options = {name: {key: value for key, value in entry.items() if key != "params"}
               for entry in saved["param_groups"] for name in entry["params"]}
    for group in groups:
        for name in group:
            if options[name] != options[group[0]]:
                key = next(key for key in {**options[name], **options[group[0]]}
                           if options[name].get(key) != options[group[0]].get(key))
                raise ValueError(f"these states have {key} {options[group[0]].get(key)} for {group[0]!r} and "
                                 f"{options[name].get(key)} for {name!r}, which have one group of options here: give "
                                 "options_of as it was when they were saved")
    return [options[group[0]] for group in groups]
