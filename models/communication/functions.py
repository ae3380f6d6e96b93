"""The pointwise functions that a program may name, each written once for numpy and torch.

A function takes the array module (``numpy`` or ``torch``), its operands, and its attributes by name. Operands
broadcast. ``scales``: the function is linear in each operand with the others fixed, so that applied to a local operand
and a replicated one it remains a term of the sum over the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from weft.models.communication.program import CommunicationError


@dataclass(frozen=True, slots=True)
class Function:
    """``compute(xp, *operands, **attributes)`` of ``arity`` operands."""

    name: str
    arity: int
    compute: Callable[..., Any]
    scales: bool = False

    def require(self, attributes: Iterable[str]) -> None:
        """Raise :class:`~weft.models.communication.program.CommunicationError` unless these are its attributes."""
        own = [entry for entry in signature(self.compute).parameters.values() if entry.kind is Parameter.KEYWORD_ONLY]
        given = set(attributes)
        missing = [entry.name for entry in own if entry.default is Parameter.empty and entry.name not in given]
        unknown = sorted(given - {entry.name for entry in own})
        if missing or unknown:
            raise CommunicationError(f"the pointwise function {self.name!r} " + (
                f"needs {missing[0]}" if missing else f"has no {unknown[0]}") + ": it takes "
                + (", ".join(entry.name for entry in own) or "operands alone"))


#: By name.
FUNCTIONS: dict[str, Function] = {}


def function(name: str, arity: int, *, scales: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a custom pointwise function: a decorator of ``compute(xp, *operands, **attributes)``.

    Raises :class:`~weft.models.communication.program.CommunicationError` for a duplicate name.
    """
    def registered(compute: Callable[..., Any]) -> Callable[..., Any]:
        if name in FUNCTIONS:
            raise CommunicationError(f"the pointwise function {name!r} is there already: take another name")
        FUNCTIONS[name] = Function(name, arity, compute, scales)
        return compute
    return registered


def function_named(name: str) -> Function:
    """The function of that name. Raises :class:`~weft.models.communication.program.CommunicationError` if there is
    none."""
    if name not in FUNCTIONS:
        raise CommunicationError(f"there is no pointwise function {name!r}: register it with "
                                 f"weft.communication.function, or take one of {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name]


@function("add", 2)
def _add(_: Any, one: Any, other: Any) -> Any:
    return one + other


@function("sub", 2)
def _sub(_: Any, one: Any, other: Any) -> Any:
    return one - other


@function("mul", 2, scales=True)
def _mul(_: Any, one: Any, other: Any) -> Any:
    return one * other


@function("div", 2)
def _div(_: Any, one: Any, other: Any) -> Any:
    return one / other


@function("scale", 1, scales=True)
def _scale(_: Any, one: Any, *, factor: float) -> Any:
    return factor * one


@function("relu", 1)
def _relu(_: Any, one: Any) -> Any:
    return one * (one > 0)


@function("tanh", 1)
def _tanh(xp: Any, one: Any) -> Any:
    return xp.tanh(one)


@function("sqrt", 1)
def _sqrt(xp: Any, one: Any) -> Any:
    return xp.sqrt(one)


@function("gelu", 1)
def _gelu(xp: Any, one: Any) -> Any:
    """The approximation by tanh."""
    return 0.5 * one * (1.0 + xp.tanh(math.sqrt(2.0 / math.pi) * (one + 0.044715 * one * one * one)))


@function("descend", 2)
def _descend(_: Any, weight: Any, direction: Any, *, rate: float) -> Any:
    """A step of ``rate`` against ``direction``."""
    return weight - rate * direction


@function("mean_of", 2)
def _mean_of(_: Any, mean: Any, gradient: Any, *, beta: float) -> Any:
    """The moving mean of gradients."""
    return beta * mean + (1.0 - beta) * gradient


@function("square_of", 2)
def _square_of(_: Any, mean: Any, gradient: Any, *, beta: float) -> Any:
    """The moving mean of squared gradients."""
    return beta * mean + (1.0 - beta) * gradient * gradient


@function("adam_direction", 3)
def _adam_direction(xp: Any, mean: Any, square: Any, step: Any, *, betas: tuple[float, float], eps: float) -> Any:
    """Bias-corrected means after ``step`` steps, one over the root of the other."""
    unbiased, spread = mean / (1.0 - betas[0] ** step), square / (1.0 - betas[1] ** step)
    return unbiased / (xp.sqrt(spread) + eps)


@function("decayed", 2)
def _decayed(_: Any, direction: Any, weight: Any, *, decay: float) -> Any:
    """The direction with the pull of weight decay."""
    return direction + decay * weight


@function("trust", 3)
def _trust(xp: Any, direction: Any, weight_norm: Any, direction_norm: Any) -> Any:
    """LAMB's layer-wise scaling of a direction; 1 where a norm is 0."""
    known = (weight_norm > 0) & (direction_norm > 0)
    ratio = xp.where(known, weight_norm, xp.ones_like(weight_norm)) / xp.where(
        known, direction_norm, xp.ones_like(direction_norm))
    return direction * ratio
