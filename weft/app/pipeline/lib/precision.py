"""Mixed precision: modules in a lower dtype with master weights in fp32, or autocast.

``dtype=torch.bfloat16``: modules and the tensors between stages are in bf16; the optimizer updates master weights in
fp32, which accumulate the gradients (:class:`~weft.runtime.interface.precision.MasterWeights`).
``autocast=torch.bfloat16``: weights keep their dtype, and operators compute in the dtype that torch's autocast selects.
With ``torch.float16`` in either, losses are scaled (:mod:`weft.runtime.interface.scaling`).
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

#: Dtype of master weights.
MASTER = torch.float32


def require_types(dtype: object, autocast: object) -> None:
    """Refuse dtypes that do not support training.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    for name, value in (("dtype", dtype), ("autocast", autocast)):
        if value is None:
            continue
        if not isinstance(value, torch.dtype) or not value.is_floating_point or value.itemsize < 2:
            raise CaptureError(f"{name} is {value!r:.60}, it must be torch.bfloat16, torch.float16" + (
                ", torch.float32 or torch.float64" if name == "dtype" else ""))
    if dtype is not None and autocast is not None:
        raise CaptureError("dtype and autocast are both given: give dtype to convert modules, or autocast to keep "
                           "their weights")


def lowered(module: nn.Module, dtype: torch.dtype, loss: nn.Module | None = None) -> dict[str, Tensor]:
    """Convert ``module`` and ``loss`` to ``dtype`` in place. Returns the parameters before conversion, by name."""
    before = {item.name: item.tensor.detach() for item in named_tensors(module, loss)
              if isinstance(item.tensor, nn.Parameter)}
    for part in (module, loss):
        if part is not None:
            part.to(dtype)
    return before


def typed(value: Any, dtype: torch.dtype | None) -> Any:
    """``value`` (a tree) with its floating-point tensors in ``dtype``."""
    if dtype is None:
        return value
    return tree_map(lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
                    value)


def masters_of(parameters: Mapping[str, nn.Parameter], full: Mapping[str, Tensor],
               dtype: torch.dtype | None) -> MasterWeights | None:
    """Master weights of ``parameters`` with the values ``full``; ``None`` if ``dtype`` needs none."""
    if not has_masters(dtype):
        return None
    return MasterWeights(parameters.values(), [shared_as(parameter, full[name].to(parameter.device))
                                               for name, parameter in parameters.items()], MASTER)


def scaling_of(dtype: torch.dtype | None, autocast: torch.dtype | None) -> LossScale | None:
    """The loss scale, if anything is computed in fp16."""
    return LossScale() if torch.float16 in (dtype, autocast) else None


def copies_of_weights(dtype: torch.dtype | None) -> tuple[int, int]:
    """Optimizer state per weight, in multiples of a weight's bytes: two moments; and the same with master weights and
    the additional bytes of their gradients."""
    if not has_masters(dtype):
        return 2, 2
    times = MASTER.itemsize // dtype.itemsize
    return 2 * times, 4 * times - 1


def has_masters(dtype: torch.dtype | None) -> TypeGuard[torch.dtype]:
    """Whether ``dtype`` needs master weights."""
    return dtype is not None and dtype.itemsize < MASTER.itemsize


def autocasting(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """A context with autocast to ``dtype``, if that is given."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
