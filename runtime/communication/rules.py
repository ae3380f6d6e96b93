"""Adam and LAMB on a slice: the update of this rank's elements of parameters, gradients and states.

Both have moving means of the gradient and of its square (Kingma and Ba, "Adam: A Method for Stochastic Optimization",
2015). ``adam`` and ``adamw`` are the steps of ``torch.optim``. ``lamb`` (You et al., "Large Batch Optimization for Deep
Learning: Training BERT in 76 Minutes", 2020) adds weight decay to the direction and scales the step by the parameter's
norm relative to the direction's: norms of whole parameters, so of sums of squares over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

#: The names of the rules.
Rule: TypeAlias = Literal["adam", "adamw", "lamb"]
#: The state of each element, by the names of torch's optimizers.
STATES = ("exp_avg", "exp_avg_sq")


class RuleOptions(TypedDict, total=False):
    """What a rule may be given, as torch's optimizers call it."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class _Rule:
    """``defaults``: of its options; ``by_norms``: whether steps are as long as norms of whole parameters say."""

    defaults: RuleOptions
    by_norms: bool = False


def _options(eps: float, weight_decay: float) -> RuleOptions:
    return RuleOptions(lr=1e-3, betas=(0.9, 0.999), eps=eps, weight_decay=weight_decay)


#: By name, with the defaults that each has where it was published (torch's for those that torch has).
RULES: Mapping[str, _Rule] = {"adam": _Rule(_options(1e-8, 0.0)), "adamw": _Rule(_options(1e-8, 1e-2)),
                              "lamb": _Rule(_options(1e-6, 1e-2), by_norms=True)}


def stepped(rule: str, weights: Sequence[Tensor], gradients: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]],
            steps: Sequence[float], options: Mapping[str, Any]) -> None:
    """A step of ``adam`` or ``adamw`` of several tensors, in place; ``steps``: the number of each one's."""
    first, second = ([state[name] for state in states] for name in STATES)
    (adam if rule == "adam" else adamw)(
        list(weights), list(gradients), first, second, [], [torch.tensor(step - 1.0, device="cpu") for step in steps],
        amsgrad=False, beta1=options["betas"][0], beta2=options["betas"][1], lr=options["lr"],
        weight_decay=options["weight_decay"], eps=options["eps"], maximize=False)


def moments(state: Mapping[str, Tensor], gradient: Tensor, betas: tuple[float, float]) -> None:
    """Add ``gradient`` to the moving means, in place."""
    state["exp_avg"].lerp_(gradient, 1 - betas[0])
    state["exp_avg_sq"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])


def direction(state: Mapping[str, Tensor], step: int, options: Mapping[str, Any]) -> Tensor:
    """The mean over the root of the mean square, both without their bias towards 0 after ``step`` steps."""
    first, second = options["betas"]
    size = (state["exp_avg_sq"] / (1 - second ** step)).sqrt_().add_(options["eps"])
    found: Tensor = state["exp_avg"] / (1 - first ** step)
    return found.div_(size)


def trust_ratios(squares: Tensor) -> Tensor:
    """LAMB's factor of each step, from ``squares``: of the norms of weights, and in the second row of directions.

    1 where one of the norms is 0.
    """
    weights, directions = squares.sqrt()
    known = (weights > 0) & (directions > 0)
    return torch.where(known, weights / torch.where(known, directions, 1.0), 1.0)
