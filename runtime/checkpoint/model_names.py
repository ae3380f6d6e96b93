"""The parameters and buffers of a model, and of its loss, each once, with all names that it has there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import NamedTuple

from torch import Tensor, nn

from weft.runtime.checkpoint.weights import Weights, WeightsError


class NamedTensor(NamedTuple):
    """A parameter or buffer; ``names`` are in the model's order, and the first is the main one. ``is_saved``: it is
    part of the model's state dict."""

    names: tuple[str, ...]
    tensor: Tensor
    is_saved: bool

    @property
    def name(self) -> str:
        """Its main name."""
        return self.names[0]


def named_tensors(model: nn.Module, loss: nn.Module | None = None) -> list[NamedTensor]:
    """All parameters and buffers of ``model``, and of ``loss``, as if it were the model's ``loss``; tied ones are one.
    """
    found: dict[int, NamedTensor] = {}
    parts = model.named_modules(remove_duplicate=False)
    if loss is not None:
        parts = chain(parts, loss.named_modules(prefix="loss", remove_duplicate=False))
    for prefix, module in parts:
        passing = module._non_persistent_buffers_set
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                whole, saved = f"{prefix}.{name}" if prefix else name, name not in passing
                before = found.get(id(tensor), NamedTensor((), tensor, False))
                found[id(tensor)] = NamedTensor((*before.names, whole), tensor, before.is_saved or saved)
    return list(found.values())


def fitted(weights: Weights, wanted: Collection[NamedTensor], model: str, strict: bool = True,
           whole: bool = True) -> Mapping[str, str]:
    """The name in ``weights`` of each of the ``wanted`` tensors of ``model``, by its main name in the model.

    Raises :class:`~weft.runtime.checkpoint.weights.WeightsError` for one of another shape, with ``whole`` for one that
    is missing and is saved with the model, and with ``strict`` for one that the model does not have.
    """
    found: dict[str, str] = {}
    for item in wanted:
        there = next((name for name in item.names if name in weights.tensors), None)
        if there is None:
            if item.is_saved and whole:
                raise WeightsError(f"{weights.where} has no {item.name}: give the whole state of {model}")
            continue
        shape = weights.tensors[there].shape
        if shape != tuple(item.tensor.shape):
            raise WeightsError(f"{weights.where}: {there} has the shape {_shown(shape)}, but in {model} it has "
                               f"{_shown(item.tensor.shape)}: give the state of this model")
        found[item.name] = there
    known = {name for item in wanted for name in item.names}
    for name in weights.tensors:
        if strict and name not in known:
            raise WeightsError(f"{weights.where} has {name}, which {model} does not have: give the state of this model")
    return found


def _shown(shape: Collection[int]) -> str:
    return f"({', '.join(map(str, shape))})"
