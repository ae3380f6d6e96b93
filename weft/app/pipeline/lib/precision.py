"""The types of numbers that a pipeline computes in: all modules in bf16 beside weights in fp32, or autocast.

``dtype=torch.bfloat16``: modules are in bf16, and so is what passes between stages; the optimizer has weights in fp32,
which gather the gradients (:class:`~weft.runtime.interface.precision.MasterWeights`). ``autocast=torch.bfloat16``:
weights stay as they are, and each operator computes in the type that torch's autocast has for it. With
``torch.float16`` in either place losses are scaled (:mod:`weft.runtime.interface.scaling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from weft.runtime.captured.captured import CaptureError
from weft.runtime.checkpoint.weights import named_tensors
from weft.runtime.interface.precision import MasterWeights
from weft.runtime.interface.scaling import LossScale
from weft.runtime.train.sharding import shared_as

#: The type of the weights that are trained where modules are in a lower one.
MASTER = torch.float32


def require_types(dtype: object, autocast: object) -> None:
    """Refuse types that nothing is trained in.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    for name, value in (("dtype", dtype), ("autocast", autocast)):
        if value is None:
            continue
        if not isinstance(value, torch.dtype) or not value.is_floating_point or value.itemsize < 2:
            raise CaptureError(f"{name} is {value!r:.60}, it must be torch.bfloat16, torch.float16" + (
                ", torch.float32 or torch.float64" if name == "dtype" else ""))
    if dtype is not None and autocast is not None:
        raise CaptureError("dtype and autocast are both given: give dtype for modules in that type, or autocast for "
                           "weights as they are")


def lowered(module: nn.Module, dtype: torch.dtype, loss: nn.Module | None = None) -> dict[str, Tensor]:
    """Bring ``module`` and ``loss`` to ``dtype``, in place; gives parameters as they were, by name."""
    before = {item.name: item.tensor.detach() for item in named_tensors(module, loss)
              if isinstance(item.tensor, nn.Parameter)}
    for part in (module, loss):
        if part is not None:
            part.to(dtype)
    return before


def typed(value: Any, dtype: torch.dtype | None) -> Any:
    """``value``, nested, with its floating-point tensors in ``dtype``."""
    if dtype is None:
        return value
    return tree_map(lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
                    value)


def masters_of(parameters: Mapping[str, nn.Parameter], full: Mapping[str, Tensor],
               dtype: torch.dtype | None) -> MasterWeights | None:
    """What is trained in place of ``parameters``, from their values ``full``; ``None``: they themselves."""
    if not has_masters(dtype):
        return None
    return MasterWeights(parameters.values(), [shared_as(parameter, full[name].to(parameter.device))
                                               for name, parameter in parameters.items()], MASTER)


def scaling_of(dtype: torch.dtype | None, autocast: torch.dtype | None) -> LossScale | None:
    """The scale of losses, where something is computed in fp16."""
    return LossScale() if torch.float16 in (dtype, autocast) else None


def copies_of_weights(dtype: torch.dtype | None) -> tuple[int, int]:
    """An optimizer's two values in numbers of a weight's size; and the same with masters and what their gradients take
    more than one of that size."""
    if not has_masters(dtype):
        return 2, 2
    times = MASTER.itemsize // dtype.itemsize
    return 2 * times, 4 * times - 1


def has_masters(dtype: torch.dtype | None) -> TypeGuard[torch.dtype]:
    """Whether weights are trained in another type than modules compute in."""
    return dtype is not None and dtype.itemsize < MASTER.itemsize


def autocasting(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Inside, operators compute in the types of autocast to ``dtype``, if that is given."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
