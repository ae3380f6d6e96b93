"""A batch as the user hands it over, cut into micro-batches: nested arguments in, tensors by name out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map

from weft.runtime.captured.captured import CaptureError

__all__ = ["BatchError", "Layout", "micro_batch"]


class BatchError(CaptureError):
    """A batch that does not fit: one sentence."""


def micro_batch(value: Any, count: int, dim: int = 0, number: int = 0) -> Any:
    """Number ``number`` of ``count`` micro-batches of ``value``, whose tensors are cut along ``dim``.

    Raises :class:`BatchError` where the batch does not divide.
    """
    size = batch_size(tree_flatten(value)[0], dim)
    if size is not None and size % count:
        raise BatchError(f"a batch of {size} does not divide into {count} micro-batches: give a batch whose size is a "
                         f"multiple of {count}, or another micro_batches")
    return tree_map(lambda leaf: _cut(leaf, size, count, dim, number) if isinstance(leaf, Tensor) else leaf, value)


def batch_size(leaves: Sequence[Any], dim: int) -> int | None:
    """How many samples there are along ``dim``, by the first tensor that has that dimension; ``None`` if none has."""
    return next((int(leaf.shape[dim]) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > dim), None)


class Layout:
    """How what is given as one batch becomes ``count`` micro-batches of tensors called ``names``.

    ``spec``: how it is nested; ``looks``: shape and type of each leaf in one micro-batch, or the value that it must
    have where it is no tensor. A tensor that is not as long as the batch along ``dim`` is the same for all
    micro-batches.
    """

    def __init__(self, what: str, names: Sequence[str], spec: TreeSpec, looks: Sequence[Any], count: int,
                 dim: int = 0) -> None:
        self.what, self.names, self.spec, self.looks, self.count, self.dim = what, names, spec, looks, count, dim

    @property
    def named(self) -> dict[str, Tensor]:
        """A tensor like each of those of a micro-batch, by name."""
        return {name: looks for name, looks in zip(self.names, self.looks, strict=True) if isinstance(looks, Tensor)}

    def micro_batches(self, value: Any) -> list[dict[str, Tensor]]:
        """The tensors of each micro-batch, by name. Raises :class:`BatchError`."""
        leaves, spec = tree_flatten(value)
        if spec != self.spec:
            raise BatchError(f"{self.what} is {_shown(spec)}, but the example was {_shown(self.spec)}: give what the "
                             "pipeline was made with")
        size = batch_size(leaves, self.dim)
        cut: list[dict[str, Tensor]] = [{} for _ in range(self.count)]
        for name, leaf, looks in zip(self.names, leaves, self.looks, strict=True):
            if not isinstance(looks, torch.Tensor):
                if isinstance(leaf, Tensor) or leaf != looks:
                    raise BatchError(f"{self.what}: {name} is {leaf!r:.60}, but the model was captured with "
                                     f"{looks!r:.60}, which is a constant of its graph: make another pipeline for it")
                continue
            if not isinstance(leaf, Tensor):
                raise BatchError(f"{self.what}: {name} is {type(leaf).__name__}, it must be a tensor")
            for i in range(self.count):
                part = _cut(leaf, size, self.count, self.dim, i)
                if part.shape != looks.shape or part.dtype != looks.dtype:
                    raise BatchError(f"{self.what}: {name} has the shape {tuple(leaf.shape)} and type {leaf.dtype}, "
                                     f"which gives micro-batches of {tuple(part.shape)}, but the pipeline was made for "
                                     f"{tuple(looks.shape)} and {looks.dtype}")
                cut[i][name] = part
        return cut


def _cut(leaf: Tensor, size: int | None, count: int, dim: int, i: int) -> Tensor:
    """Micro-batch ``i`` of ``leaf``, which is whole where it has no such dimension."""
    if size is None or leaf.dim() <= dim or leaf.shape[dim] != size or size % count:
        return leaf
    return leaf.narrow(dim, i * (size // count), size // count)


def _shown(spec: TreeSpec) -> str:
    return f"{str(spec)!r:.120}"
