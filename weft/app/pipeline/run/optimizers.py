"""Optimizers of the user's that would train nothing: they have a model's parameters where others are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

__all__ = ["watched_optimizers"]


def watched_optimizers(idle: Iterable[nn.Parameter], refused: Callable[[str], object]) -> RemovableHandle:
    """Hand a sentence to ``refused`` when an optimizer steps that has any of ``idle``, which gather no gradients; until
    what is returned is removed."""
    known = {id(parameter): parameter for parameter in idle}  # held, so that no other object gets its id

    def look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
            refused("the optimizer has parameters that are not trained: build it over pipe.parameters(), which has "
                    "their weights in full precision, in place of model.parameters()")

    return register_optimizer_step_pre_hook(look)
