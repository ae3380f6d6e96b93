"""The check that an optimizer trains a rank's parameters, for pipelines, ``weft train`` and replays.

torch's optimizers do not fail if none of their parameters has a gradient. An optimizer that would leave the model
unchanged is refused: before the first step if it is passed in, otherwise before its own first step.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer

from weft.runtime.interface.optim import AdamA


def misfit(optimizer: object, trained: Iterable[Tensor], idle: Iterable[Tensor], where: str, *,
           folds: bool) -> str | None:
    """A sentence on why ``optimizer`` does not train ``trained``, this rank's parameters, or ``None``.

    It must have some of them, if there are any, and none of ``idle``, which are replaced by other parameters.
    ``where``: the expression for the right parameters, for the sentence. ``folds``: whether each micro-batch's
    gradients can be folded as they are computed, as AdamA requires.
    """
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        return f"the optimizer is {kind}, it must be a torch.optim.Optimizer: make it of {where}"
    if isinstance(optimizer, AdamA) and not folds:
        return ("AdamA would train nothing here: it takes each micro-batch's gradients as they come, but here they are "
                "ready after the batch; give torch.optim.Adam or AdamW, or run the stages by weft replay, which hands "
                "AdamA its gradients")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        return (f"{kind} runs the model again within its step, which a schedule cannot do: give an optimizer whose "
                "step needs no closure, such as torch.optim.AdamW")
    own, known = {id(parameter) for parameter in parameters_of(optimizer)}, {id(parameter) for parameter in trained}
    if own & {id(parameter) for parameter in idle}:
        return (f"the optimizer has parameters that are not trained: make it of {where}, which are their weights in "
                "full precision")
    if known and not own & known:
        return f"the optimizer would train nothing, as it has none of this rank's parameters: make it of {where}"
    return None


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters that ``optimizer`` updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
