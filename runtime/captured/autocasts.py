"""Operators that a model's own forward computes under ``torch.autocast``, each by itself.

``torch.export`` puts such a part into one call; taken out of it (:mod:`~weft.runtime.captured.regions`), each operator
must still compute in the types that autocast has for it there, whatever holds outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Autocasting", "UnderAutocast", "under_autocast"]


class UnderAutocast:
    """``operator`` under ``torch.autocast(*setting)``; to whom looks at it, it is ``operator``."""

    def __init__(self, operator: torch._ops.OpOverload, setting: Sequence[Any]) -> None:
        kind, dtype, enabled = setting[:3]
        self.operator, self.setting = operator, (kind, dtype, enabled)
        self._schema, self.tags = operator._schema, operator.tags
        self.__name__ = operator.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What ``operator`` gives."""
        with _autocast(self.setting):
            return self.operator(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.operator} under autocast{self.setting}"

    def around(self, layer: nn.Module) -> nn.Module:
        """``layer``, which does what ``operator`` does."""
        return Autocasting(layer, self.setting)


@cache
def under_autocast(operator: torch._ops.OpOverload, setting: tuple[Any, ...]) -> UnderAutocast:
    """``operator`` under ``torch.autocast(*setting)``: one object for equal ones, as torch 2.6 needs
    for what it writes as code."""
    return UnderAutocast(operator, setting)


class Autocasting(nn.Module):
    """``layer`` under ``torch.autocast(*setting)``."""

    def __init__(self, layer: nn.Module, setting: tuple[Any, ...]) -> None:
        super().__init__()
        self.layer, self.setting = layer, setting

    def forward(self, *xs: Tensor) -> Any:
        """What ``layer`` gives."""
        with _autocast(self.setting):
            return self.layer(*xs)


def _autocast(setting: tuple[Any, ...]) -> torch.autocast:
    kind, dtype, enabled = setting
    return torch.autocast(kind, dtype, enabled, cache_enabled=False)
