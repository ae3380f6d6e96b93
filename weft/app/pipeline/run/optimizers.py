"""Optimizers of the user's that would train nothing, and scalers of losses: refused when they are called, as a
pipeline is not told of them before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from weft.runtime.checkpoint.optimizer_state import divides
from weft.runtime.interface.fitting import misfit, parameters_of
from weft.runtime.interface.optim import AdamA
from weft.runtime.train.sharding import is_divided

#: What an optimizer is to be made of.
WHERE = "pipe.parameters()"
#: What hears of the losses and the optimizers that scalers are given, by handle.
_HEARS: OrderedDict[int, Callable[[object], None]] = OrderedDict()


def watched_optimizers(trained: Iterable[nn.Parameter], idle: Iterable[nn.Parameter],
                       refused: Callable[[str], object]) -> RemovableHandle:
    """Hand a sentence to ``refused`` when an optimizer steps that does not fit ``trained``, or has any of ``idle``,
    which gather no gradients; until what is returned is removed. Of an optimizer that has none of either it is refused
    only if nothing that it has got a gradient while ``trained`` did: the script may train something else."""
    mine, others = list(trained), list(idle)  # held, so that no other object gets their ids
    known = {id(parameter) for parameter in (*mine, *others)}

    def look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        own = parameters_of(optimizer)
        waits = any(parameter.grad is not None for parameter in mine)
        if not any(id(parameter) in known for parameter in own) and (
                not waits or any(parameter.grad is not None for parameter in own)):
            return
        if divides(optimizer) and any(map(is_divided, mine)):
            refused(f"{type(optimizer).__name__} divides an optimizer's states among copies, which shares already are: "
                    "give the optimizer that it was to make, of pipe.parameters(), or leave fully_shard and "
                    "tensor_parallel out")
            return
        folded = isinstance(optimizer, AdamA) and not optimizer.unfolded  # by the script itself
        if (why := misfit(optimizer, mine, others, WHERE, folds=folded)) is not None:
            refused(why)

    return register_optimizer_step_pre_hook(look)


def watched_scalers(trained: Iterable[nn.Parameter], refused: Callable[[str], object]) -> RemovableHandle:
    """Hand a sentence to ``refused`` when a ``GradScaler`` is given a number, as a step's loss is, or an optimizer of
    any of ``trained``; until what is returned is removed."""
    mine = list(trained)  # held, so that no other object gets their ids
    known = {id(parameter) for parameter in mine}

    def hear(given: object) -> None:
        if isinstance(given, float) or (isinstance(given, Optimizer) and not known.isdisjoint(
                map(id, parameters_of(given)))):
            refused("a GradScaler scales a loss before its backward, which step has run already: leave the scaler out, "
                    "and call optimizer.step(); with autocast=torch.float16 or dtype=torch.float16 the pipeline scales "
                    "losses itself (pipe.loss_scale)")

    _listen()
    handle = RemovableHandle(_HEARS)
    _HEARS[handle.id] = hear
    return handle


@cache
def _listen() -> None:
    for name in ("scale", "unscale_", "step"):
        _tell(name, getattr(GradScaler, name))


def _tell(name: str, theirs: Callable[..., Any]) -> None:
    @wraps(theirs)
    def told(scaler: GradScaler, *args: Any, **settings: Any) -> Any:
        for hear in tuple(_HEARS.values()) if scaler.is_enabled() else ():
            hear(next(iter((*args, *settings.values())), None))
        return theirs(scaler, *args, **settings)

    setattr(GradScaler, name, told)
