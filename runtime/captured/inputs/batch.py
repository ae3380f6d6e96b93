"""A batch cut into micro-batches: nested arguments in, tensors by name out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.inputs.batch_dims import Dims, Leaf


class BatchError(CaptureError):
    """A batch does not match the pipeline; the message is one sentence."""


class ShapeError(BatchError):
    """A batch has an unsupported shape. All ranks raise it before any of them runs, so they may continue with another
    batch."""


def micro_batch(value: Any, count: int, dims: Dims, number: int = 0) -> Any:
    """Micro-batch ``number`` of ``count`` of the nested ``value``, whose leaves are cut along ``dims``.

    Raises :class:`BatchError` if the batch does not divide evenly.
    """
    leaves, spec = tree_flatten(value)
    return tree_unflatten([_cut(leaf, count, dim, number) for leaf, dim in zip(leaves, dims, strict=True)], spec)


def require_divides(size: int, count: int) -> None:
    """Raise :class:`BatchError` unless ``size`` samples divide into ``count`` equal micro-batches."""
    if size % count or not size:
        raise BatchError(f"a batch of {size} does not divide into {count} micro-batches: give a batch whose size is a "
                         f"multiple of {count}, or another micro_batches")


class BatchLayout:
    """Cuts a batch into ``count`` micro-batches of tensors named ``names``.

    ``leaves`` and ``spec``: the leaves of ``(args, kwargs)`` and their structure. ``examples``: for each leaf a tensor
    with the shape and dtype in one micro-batch, or the required value of a non-tensor. ``dims``: the dimension along
    which each leaf is cut, ``None`` if it is the same for all micro-batches. ``positional``: the arguments that may
    also be given by position, in order.
    """

    def __init__(self, names: Sequence[str], leaves: Sequence[Leaf], spec: TreeSpec, examples: Sequence[Any],
                 dims: Dims, count: int, positional: Sequence[str] = ()) -> None:
        self.names, self.leaves, self.spec, self.examples = names, leaves, spec, examples
        self.dims, self.count, self.positional = dims, count, positional

    @property
    def named(self) -> dict[str, Tensor]:
        """Example tensors of a micro-batch, by name."""
        return {name: value for name, value in zip(self.names, self.examples, strict=True) if isinstance(value, Tensor)}

    def micro_batches(self, args: Sequence[Any], kwargs: Mapping[str, Any],
                      needed: Collection[str] | None = None) -> tuple[list[dict[str, Tensor]], int | None]:
        """The tensors of each micro-batch, by name, and the number of samples (``None`` if no tensor is cut). Arguments
        not in ``needed`` (``None``: all are needed) may be missing or ``None``. Raises :class:`BatchError`."""
        given, size, first = self._given(args, kwargs), None, ""
        cut: list[dict[str, Tensor]] = [{} for _ in range(self.count)]
        for name, leaf, value, example, dim in zip(
                self.names, self.leaves, given, self.examples, self.dims, strict=True):
            if not isinstance(example, Tensor):
                self._require_constant(leaf, value, example)
                continue
            if value is None and needed is not None and name not in needed:
                continue
            if not isinstance(value, Tensor):
                raise BatchError(f"the batch: {leaf.name} is {_kind(value)}, it must be a tensor" + (
                    ", as this rank reads it" if value is None and needed is not None else ""))
            if dim is not None and value.dim() > dim:
                size, first = _one_size(size, first, leaf, value, dim), leaf.name
                if size != example.shape[dim] * self.count:
                    require_divides(size, self.count)
            for i in range(self.count):
                part = _cut(value, self.count, dim, i)
                if part.shape != example.shape or part.dtype != example.dtype:
                    raise BatchError(f"the batch: {leaf.name} has the shape {tuple(value.shape)} and type "
                                     f"{value.dtype}, which gives micro-batches of {tuple(part.shape)}, but the "
                                     f"pipeline was made for {tuple(example.shape)} and {example.dtype}: give what the "
                                     "example was like")
                cut[i][name] = part
        return cut, size

    # -- other shapes --------------------------------------------------------------------------------------------------

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a batch, ``None`` for missing tensors. Raises :class:`BatchError`."""
        return self._given(args, kwargs)

    def has_shapes_of(self, leaves: Sequence[Any]) -> bool:
        """Whether the tensors among ``leaves``, of a full batch, have the expected shapes and dtypes."""
        return all(not isinstance(value, Tensor) or not isinstance(example, Tensor) or (
            value.dtype == example.dtype and tuple(value.shape) == tuple(
                length * self.count if place == dim else length for place, length in enumerate(example.shape)))
            for value, example, dim in zip(leaves, self.examples, self.dims, strict=True))

    def require_kind(self, leaves: Sequence[tuple[Sequence[int], str] | None]) -> None:
        """Raise :class:`ShapeError` unless the ``leaves``, each a shape and a dtype, have the number of dimensions and
        the dtype of the examples."""
        for leaf, found, like in zip(self.leaves, leaves, self.examples, strict=True):
            if found is not None and isinstance(like, Tensor) and (
                    len(found[0]) != like.dim() or found[1] != str(like.dtype)):
                raise ShapeError(f"the batch: {leaf.name} is {found[0]} of {found[1]}, but the pipeline was made for "
                                 f"tensors like {tuple(like.shape)} of {like.dtype}: give what the example was like")

    def size(self, leaves: Sequence[Any]) -> int | None:
        """The number of samples of ``leaves``; ``None`` if no tensor is cut. Raises :class:`BatchError` if tensors
        disagree."""
        size, first = None, ""
        for leaf, value, example, dim in zip(self.leaves, leaves, self.examples, self.dims, strict=True):
            if isinstance(value, Tensor) and isinstance(example, Tensor) and dim is not None and value.dim() > dim:
                size, first = _one_size(size, first, leaf, value, dim), leaf.name
        return size

    def alike(self, examples: Sequence[Any], count: int) -> BatchLayout:
        """The same layout for ``count`` micro-batches of other shapes."""
        return BatchLayout(self.names, self.leaves, self.spec, examples, self.dims, count, self.positional)

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of the arguments, in the order of ``leaves``; ``None`` for those of missing arguments."""
        wanted_args, wanted = tree_unflatten(range(len(self.leaves)), self.spec)
        positions = dict(zip(self.positional, range(len(wanted_args)), strict=False))
        found_args, found = [*args, *[None] * (len(wanted_args) - len(args))], dict(kwargs)
        for name in [name for name in found if name in positions and name not in wanted]:
            if positions[name] < len(args):
                raise BatchError(f"{name} is given by position and by name: give it once")
            found_args[positions[name]] = found.pop(name)
        for place in range(len(wanted_args), len(found_args)):
            name = self.positional[place] if place < len(self.positional) else ""
            if name not in wanted or name in found:
                raise BatchError(f"the batch has {len(found_args)} arguments by position, but the example had "
                                 f"{len(wanted_args)}: give what the pipeline was made with")
            found[name] = found_args[place]
        for name in found:
            if name not in wanted:
                raise BatchError(f"the batch has an argument {name!r}, but the example had {self._listed()}: give what "
                                 "the pipeline was made with")
        parts = [*zip(found_args, wanted_args, strict=False),
                 *((found.get(name), like) for name, like in wanted.items())]
        return [leaf for part, like in parts for leaf in self._leaves(part, like)]

    def _leaves(self, value: Any, like: Any) -> list[Any]:
        """The leaves of the argument ``value``; ``like`` has the same structure, with the numbers of the leaves."""
        numbers, spec = tree_flatten(like)
        if value is None:
            return [None if isinstance(self.examples[i], Tensor) else self.examples[i] for i in numbers]
        leaves, own = tree_flatten(value)
        if own != spec:
            argument = self.leaves[numbers[0]].argument if numbers else "an argument"
            raise BatchError(f"the batch: {argument} is {_shown(own)}, but the example was {_shown(spec)}: give what "
                             "the pipeline was made with")
        return leaves

    def _listed(self) -> str:
        return ", ".join(dict.fromkeys(leaf.argument for leaf in self.leaves)) or "none"

    def _require_constant(self, leaf: Leaf, value: Any, example: Any) -> None:
        if isinstance(value, Tensor) or type(value) is not type(example) or value != example:
            raise BatchError(f"the batch: {leaf.name} is {value!r:.60}, but the model was captured with "
                             f"{example!r:.60}, which is a constant of its graph: make another pipeline for it")


def _one_size(size: int | None, first: str, leaf: Leaf, value: Tensor, dim: int) -> int:
    """The number of samples according to ``leaf``, which must equal ``size``, that of leaf ``first``."""
    if size is not None and size != value.shape[dim]:
        raise BatchError(f"{first} has {size} entries and {leaf.name} has {value.shape[dim]} along dimension {dim}: "
                         "give a batch of one size")
    return int(value.shape[dim])


def _cut(leaf: Any, count: int, dim: int | None, i: int) -> Any:
    """Micro-batch ``i`` of ``leaf``."""
    if not isinstance(leaf, Tensor) or dim is None or leaf.dim() <= dim:
        return leaf
    require_divides(leaf.shape[dim], count)
    return leaf.narrow(dim, i * (leaf.shape[dim] // count), leaf.shape[dim] // count)


def _kind(value: Any) -> str:
    if type(value).__module__ == "numpy":
        return f"a numpy {type(value).__name__} (torch.as_tensor makes one)"
    return "not there" if value is None else type(value).__name__


def _shown(spec: TreeSpec) -> str:
    return f"{str(spec)!r:.120}"
