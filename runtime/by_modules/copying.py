"""A copy of a model's modules, with the parameters and buffers of the original."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weft.runtime.captured.captured import CaptureError


def copied(model: nn.Module) -> nn.Module:
    """A model with its own modules, which hold the parameters and buffers of ``model``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for one that cannot be copied.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        memo.update((id(held), held) for held in (module._parameters, module._buffers))
        memo.update((id(leaf), leaf) for leaf in tree_leaves(list(vars(module).values())) if isinstance(leaf, Tensor))
    memo.update((id(tensor), tensor) for tensor in (*model.parameters(), *model.buffers()))
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # anything that the attributes of a user's module raise
        raise CaptureError(f"split: {type(model).__name__} cannot be copied, which every stage does with its modules "
                           f"(not its parameters): {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                           ) from error
