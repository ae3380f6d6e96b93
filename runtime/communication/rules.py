"""Adam and LAMB on a slice: the update of this rank's elements of parameters and states.

Both have moving averages of the gradient and of its square (Kingma and Ba, "Adam: A Method for Stochastic
Optimization", 2015). ``adam`` and ``adamw`` are the steps of ``torch.optim``. ``lamb`` (You et al., "Large Batch
Optimization for Deep Learning: Training BERT in 76 Minutes", 2020) adds weight decay to the direction and scales the
step by the ratio of the norms of parameter and direction; these need sums of squares over all ranks. Options are
checked before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

#: The names of the rules.
Rule: TypeAlias = Literal["adam", "adamw", "lamb"]
#: The state of each element, by the names of torch's optimizers.
STATES = ("exp_avg", "exp_avg_sq")


class RuleOptions(TypedDict, total=False):
    """The options of a rule, with the names of torch's optimizers."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class _Rule:
    """``defaults``: of the options. ``by_norms``: whether the step is scaled by norms of whole parameters."""

    defaults: RuleOptions
    by_norms: bool = False


def _options(eps: float, weight_decay: float) -> RuleOptions:
    return RuleOptions(lr=1e-3, betas=(0.9, 0.999), eps=eps, weight_decay=weight_decay)


#: The rules by name, with the defaults of their publications (of torch, if torch has the rule).
RULES: Mapping[str, _Rule] = {"adam": _Rule(_options(1e-8, 0.0)), "adamw": _Rule(_options(1e-8, 1e-2)),
                              "lamb": _Rule(_options(1e-6, 1e-2), by_norms=True)}


def stepped(rule: str, weights: Sequence[Tensor], gradients: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]],
            steps: Sequence[float], options: Mapping[str, Any]) -> None:
    """One step of ``adam`` or ``adamw`` on several tensors, in place; ``steps``: the step number of each."""
    first, second = ([state[name] for state in states] for name in STATES)
    (adam if rule == "adam" else adamw)(
        list(weights), list(gradients), first, second, [], [torch.tensor(step - 1.0, device="cpu") for step in steps],
        amsgrad=False, beta1=options["betas"][0], beta2=options["betas"][1], lr=options["lr"],
        weight_decay=options["weight_decay"], eps=options["eps"], maximize=False)


def moments(state: Mapping[str, Tensor], gradient: Tensor, betas: tuple[float, float]) -> None:
    """Add ``gradient`` to the moving averages, in place."""
    state["exp_avg"].lerp_(gradient, 1 - betas[0])
    state["exp_avg_sq"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])


def direction(state: Mapping[str, Tensor], step: int, options: Mapping[str, Any]) -> Tensor:
    """The bias-corrected mean over the root of the bias-corrected mean square, after ``step`` steps."""
    first, second = options["betas"]
    size = (state["exp_avg_sq"] / (1 - second ** step)).sqrt_().add_(options["eps"])
    found: Tensor = state["exp_avg"] / (1 - first ** step)
    return found.div_(size)


def trust_ratios(squares: Tensor) -> Tensor:
    """LAMB's trust ratio of each parameter; 1 if one of the norms is 0. ``squares``: the squared norms of weights, and
    in the second row those of directions."""
    weights, directions = squares.sqrt()
    known = (weights > 0) & (directions > 0)
    return torch.where(known, weights / torch.where(known, directions, 1.0), 1.0)


_NUMBER: Any = (Real, Tensor)  # as in torch's optimizers
Named = Sequence[tuple[str, nn.Parameter]]


def groups_of(named: Named, defaults: Mapping[str, Any],
              options_of: Callable[[str, nn.Parameter], Mapping[str, Any]] | None) -> Iterator[dict[str, Any]]:
    """Parameters grouped by equal options: ``params``, their ``names``, and all options.

    Raises ``ValueError`` for unknown options and invalid values.
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
