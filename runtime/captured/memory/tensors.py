"""Tensors in any structure, and where they lie: what the passes of a stage ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

__all__ = ["address_of", "attribute_of", "is_weight", "tensors_in"]


def address_of(tensor: Tensor) -> int:
    """Where its memory begins; 0 where it has none."""
    return tensor.untyped_storage().data_ptr()


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors of a structure."""
    if isinstance(values, Tensor):
        yield values
        return
    for leaf in tree_flatten(list(values) if not isinstance(values, list | tuple | dict | int | float | None)
                             else values)[0]:
        if isinstance(leaf, Tensor):
            yield leaf


def is_weight(tensor: Tensor) -> bool:
    """Whether it is a parameter or a view of one."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def attribute_of(stage: nn.Module, name: str) -> Tensor:
    """The parameter or buffer of ``stage`` that a dotted name means."""
    value: Any = stage
    for step in name.split("."):
        value = getattr(value, step)
    found: Tensor = value
    return found
