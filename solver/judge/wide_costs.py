"""What a block of a wide problem costs for one class of micro-batches: a part of the judge, which reads it off itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from weft.solver.problem import Block, Number
from weft.solver.wide.block import WideBlock, WideDependency

__all__ = ["block_of", "lag_of", "unknown_class"]

Value = TypeVar("Value")


def block_of(block: WideBlock, class_: str | None, name: str) -> Block:
    """``block`` as it is for a micro-batch of ``class_``, called ``name`` and without what it waits for."""
    return Block(name, block.kind, block.devices, _cost(block.duration, class_), _cost(block.memory, class_),
                 _cost(block.workspace, class_))


def lag_of(wait: WideDependency, class_: str | None) -> Number:
    """How long the transfer of ``wait`` takes from a micro-batch of ``class_``."""
    return _cost(wait.lag, class_)


def unknown_class(block: WideBlock, classes: Iterable[str | None]) -> str | None:
    """What ``block`` says of some classes and not of one of these, in words; None where it speaks of all."""
    values = [("duration", block.duration), ("memory", block.memory), ("workspace", block.workspace),
              *((f"the lag after {wait.block!r}", wait.lag) for wait in block.after)]
    for label, value in values:
        for class_ in classes:
            if isinstance(value, Mapping) and class_ not in value and (class_ is not None or len(value) > 1):
                return (f"{label} is given for the classes {', '.join(map(repr, value))}, and a micro-batch is of "
                        + ("none" if class_ is None else repr(class_)))
    return None


def _cost(value: Value | Mapping[str, Value], class_: str | None) -> Value:
    if not isinstance(value, Mapping):
        return value
    return next(iter(value.values())) if class_ is None else value[class_]
