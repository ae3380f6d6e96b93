"""What a user's ``setup()`` gives ``weft train``: a model, a batch, a loss, an optimizer, data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.train.examples import example, require_example
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.told import raised_at
from weft.runtime.interface.factory import FactoryError, find_function
from weft.runtime.interface.training import Loss

__all__ = ["Setup", "example_setup", "require_setup", "setup_of"]

#: What the command line says.
SAID = {"schedule", "memory", "spec", "time_limit", "timeout"}


@dataclass
class Setup:
    """What is trained. ``args`` and ``kwargs``: one whole batch as an example. ``data``: batches, each ``(input,
    target)``, ``(inputs, target)`` with a tuple of inputs, or a mapping of the model's named arguments, in which
    ``target`` is the loss's; without it the example is used again and again. A function ``data(needs)`` gives such on
    each rank that reads some of a batch, where ``needs("labels")`` says whether that is read there: what is not may be
    ``None``. ``optimizer`` makes one of parameters.
    ``options``: further arguments of :func:`weft.pipeline`, by name."""

    module: nn.Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Loss] | None = None
    target: Any = None
    data: Iterable[Any] | Callable[[Callable[[str], bool]], Iterable[Any]] | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = AdamW
    micro_batches: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {entry.name for entry in fields(PipelineOptions)} - {entry.name for entry in fields(self)} - SAID
        if wrong := sorted(map(str, set(self.options) - known)):
            raise CaptureError(f"options of setup gives {wrong[0]!r}, it may give {', '.join(sorted(known))}")


def require_setup(name: str | None, of_example: str | None) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` unless there is one function, or one example, of that
    name: before ranks are started for it."""
    if (name is None) == (of_example is None):
        raise CaptureError("say what to train: either FILE.py:FUNCTION, or --example NAME")
    if of_example is not None:
        require_example(of_example)
    if name is not None:
        _function(name)


def _function(name: str) -> Callable[..., Any]:
    try:
        return find_function(name, "setup")
    except FactoryError as error:
        raise CaptureError(str(error)) from None


def setup_of(name: str) -> Setup:
    """What the function ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION`` gives: a :class:`Setup`, or a mapping of its
    fields.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    function = _function(name)
    try:
        found = function()
    except CaptureError:
        raise
    except Exception as error:  # of many types: the user's own code
        raise CaptureError(f"setup {name} failed: {raised_at(error)}") from error
    if isinstance(found, Mapping):
        known = {entry.name for entry in fields(Setup)}
        if unknown := sorted(map(str, set(found) - known)):
            raise CaptureError(f"setup {name} gives {unknown[0]!r}, it may give {', '.join(sorted(known))}")
        if "module" not in found:
            raise CaptureError(f"setup {name} gives no module: put the model there")
        found = Setup(**found)
    if not isinstance(found, Setup):
        raise CaptureError(f"setup {name} gives {type(found).__name__}, it must give a mapping with module, args, "
                           "loss, optimizer and data")
    return found


def example_setup(name: str) -> Setup:
    """The example called ``name`` (:data:`weft.app.train.examples.EXAMPLES`).

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    return Setup(**example(name)._asdict())
