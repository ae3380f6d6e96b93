"""Tensors of other stages: they have shape, type and device, and numbers only if these have been received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_map

from weft.runtime.by_modules.calls import users_line
from weft.runtime.captured.captured import CaptureError
from weft.runtime.interface.training import Boundary


class Ghost(Tensor):
    """Stands for a value named ``name`` of another stage; ``real`` is that value, if it was received.

    Operations on one outside of the interceptors (inside a submodule that got it in a custom container) use the real
    value.
    """

    fake: Tensor
    name_: str
    real_: Tensor | None

    @staticmethod
    def __new__(cls, fake: Tensor, name: str, received: Tensor | None = None) -> Ghost:
        made: Ghost = Tensor._make_wrapper_subclass(
            cls, fake.shape, strides=fake.stride(), dtype=fake.dtype, device=fake.device)
        made.__dict__.update(fake=fake, name_=name, real_=received)
        return made

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        return func(*real(args), **real(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),  # type: ignore[override]
                           kwargs: Any = None) -> Any:
        raise CaptureError(f"split: {users_line()} does with a value of another stage what cannot be followed "
                           f"({func}): move it into a submodule")


def real(value: Any) -> Any:
    """``value`` with the real values of ghosts.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for one that was not received.
    """
    return tree_map(_real, value)


def _real(leaf: Any) -> Any:
    if not isinstance(leaf, Ghost):
        return leaf
    found = leaf.__dict__["real_"]
    if found is None:
        raise CaptureError(f"split: {users_line()} reads {leaf.__dict__['name_']!r} of another stage, which it did not "
                           "in the example: what is read between submodules must not depend on the numbers of a batch, "
                           "so move this into a submodule")
    return found


class Imagination:
    """The results of torch's functions on ghosts: everything but numbers."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def tensor(self, looks: Boundary, device: torch.device) -> Tensor:
        """A tensor without numbers."""
        with self.mode:
            return torch.empty(looks.known, dtype=looks.dtype, device=device)

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor like ``tensor``, without numbers."""
        return self.mode.from_tensor(tensor)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``func``, with tensors without numbers for ghosts.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` where that depends on numbers.
        """
        given = tree_map(lambda leaf: leaf.__dict__["fake"] if isinstance(leaf, Ghost) else leaf, (args, kwargs))
        try:
            with self.mode, torch.no_grad():
                return func(*given[0], **given[1])
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise CaptureError(f"split: at {users_line()} a shape or a number depends on the numbers of a tensor of "
                               "another stage: move this into a submodule") from None
