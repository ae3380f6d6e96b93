"""Which backwards of its own a model has: an export keeps the operators of a forward, and torch goes back through them.

A ``torch.autograd.Function`` that is not torch's, or a hook on a tensor, changes gradients where nobody sees it in the
exported graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

__all__ = ["own_backwards"]


@contextmanager
def own_backwards() -> Iterator[list[str]]:
    """What is found while a model runs inside, as words for a sentence."""
    found: list[str] = []
    apply: Any = Function.__dict__["apply"]
    register_hook: Callable[..., Any] = torch.Tensor.register_hook

    def applied(cls: type[Function], *args: Any, **settings: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            found.append(f"torch.autograd.Function {cls.__name__}")
        return apply.__get__(None, cls)(*args, **settings)

    def hooked(tensor: Tensor, hook: Callable[..., Any]) -> Any:
        found.append("a hook on a tensor")
        return register_hook(tensor, hook)

    Function.apply = classmethod(applied)  # type: ignore[assignment,method-assign]
    torch.Tensor.register_hook = hooked  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Function.apply = apply  # type: ignore[method-assign]
        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
