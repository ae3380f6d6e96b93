"""A model on the meta device, captured as if it were on a real one.

On the meta device an operator that says where its result is to be would say ``meta``, and so would the graph. So, while
the model is exported, tensors without memory that claim to be on the real device stand in for its own; afterwards the
graph is given the model's own again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map

__all__ = ["exchanged", "faked", "is_on_meta"]


def is_on_meta(model: nn.Module) -> bool:
    """Whether a parameter or buffer of ``model`` has no numbers."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


@contextmanager
def faked(model: nn.Module, device: torch.device, given: Any) -> Iterator[tuple[Any, dict[int, Tensor]]]:
    """Inside, what of ``model`` is on the meta device is replaced; gives ``given`` to match, which is nested, and the
    model's own tensors by the ``id`` of what stands in for them."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    stand_ins: dict[int, Tensor] = {}
    with mode:
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_meta:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                stand_ins[id(tensor)] = (nn.Parameter(fake, requires_grad=tensor.requires_grad)
                                         if isinstance(tensor, nn.Parameter) else fake)
    owned = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    back = {id(fake): owned[own] for own, fake in stand_ins.items()}
    exchanged(model, stand_ins)
    try:
        yield tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, given), back
    finally:
        exchanged(model, back)


def exchanged(root: nn.Module, others: Mapping[int, Tensor]) -> None:
    """Put ``others`` in the place of the tensors of ``root`` that have these ids: parameters, buffers, and attributes
    that are one of them."""
    for module in root.modules():
        for held in (module._parameters, module._buffers, vars(module)):
            for name, value in list(held.items()):
                if isinstance(value, Tensor) and id(value) in others:
                    held[name] = others[id(value)]  # type: ignore[assignment]
