"""Eager torch: the operators one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.patterns import singles
from weft.runtime.backends.registry import EAGER, backend


@backend(EAGER, patterns=singles, trains=True)
def build(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
    """The part's operators as captured. (A built module has them in its own code, without the cost of a call.)"""
    forward: Callable[..., Sequence[Tensor]] = part.module.forward
    return forward
