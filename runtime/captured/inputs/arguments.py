"""What a model is called with, leaf by leaf: of which argument each is, and what to call it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from weft.runtime.captured.captured import CaptureError

__all__ = ["Leaf", "leaves_of", "positional_names"]


class Leaf(NamedTuple):
    """One leaf of ``(args, kwargs)``. ``argument``: the name of the argument that it is of, as the model's forward has
    it; ``place``: its place, if it was given by position; ``name``: of the leaf, with its way inside the argument."""

    argument: str
    place: int | None
    name: str


def leaves_of(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The leaves of ``(args, kwargs)``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` where the model's forward does not take such arguments.
    """
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"{type(model).__name__} is not called so, {error}: give args and kwargs as its forward "
                           "takes them") from None
    except ValueError:  # a function of C has none
        pass
    known = positional_names(model)
    for path, leaf in tree_flatten_with_path((tuple(args), dict(kwargs)))[0]:
        if type(leaf).__module__ == "numpy":
            name = _leaf(path, known).name
            raise CaptureError(f"{name} is a numpy {type(leaf).__name__}: give torch.as_tensor of it")
    return tuple(_leaf(path, known) for path, _ in tree_flatten_with_path((tuple(args), dict(kwargs)))[0])


def positional_names(model: nn.Module) -> list[str]:
    """The arguments of the model's forward that may be given by position."""
    try:
        found = inspect.signature(model.forward).parameters.values()
    except ValueError:
        return []
    return [each.name for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _leaf(path: Sequence[Any], positional: Sequence[str]) -> Leaf:
    whole, which, *rest = path
    inside = keystr(tuple(rest))
    if whole.idx == 1:
        return Leaf(str(which.key), None, f"{which.key}{inside}")
    own = positional[which.idx] if which.idx < len(positional) else f"argument {which.idx}"
    return Leaf(own, which.idx, f"{own}{inside}")
