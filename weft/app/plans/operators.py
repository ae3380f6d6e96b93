"""Operators of a user's own: an annotation for plans, a function of tensors for what runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.models.transform.annotation import PlanError, annotation
from weft.models.transform.gradients import OWN

__all__ = ["forget", "operator"]


def operator(how: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of tensors, and of attributes by keyword, as an operator that splits as ``how`` says.

    Its name is its kind; its gradients are autograd's. Raises :class:`~weft.models.transform.annotation.PlanError` for
    an annotation that means nothing, or a known name.
    """
    from weft.runtime.by_hand.kernels import in_torch

    found = annotation(how)

    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        kind = function.__name__
        try:
            in_torch(kind)(function)
        except ValueError as refusal:
            raise PlanError(str(refusal)) from None
        OWN[kind] = found
        return function

    return registered


def forget(kind: str) -> None:
    """Take back a user's own operator."""
    from weft.runtime.by_hand.kernels import forget as without

    OWN.pop(kind, None)
    without(kind)
