"""The batch dimension of each tensor among a model's arguments, and the names of these arguments' leaves.

A tensor without a batch dimension is the same for all micro-batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path

from weft.runtime.captured.captured import CaptureError

#: The option ``batch_dims``: one dimension for all arguments, or dimensions by name or position of the argument.
BatchDims: TypeAlias = int | Mapping[Any, Any] | Sequence[Any]
#: The batch dimension of each leaf; ``None``: the leaf is the same for all micro-batches.
Dims: TypeAlias = tuple[int | None, ...]
#: The name of the target among the arguments.
TARGET_KEY = "target"


def dims_of(batch_dims: BatchDims, leaves: Sequence[Leaf], values: Sequence[Any]) -> Dims:
    """The batch dimension of each of ``values``, the leaves of a model's arguments, which ``leaves`` describes.

    By default tensors are cut along dimension 0 (or the single number in ``batch_dims``); tensors without that
    dimension, or with one entry there, are the same for all micro-batches. Raises
    :class:`~weft.runtime.captured.captured.CaptureError` for an invalid dimension of an argument, and for tensors that
    disagree on the size of the batch.
    """
    default, table = _table(batch_dims, leaves)
    dims: list[int | None] = []
    explicit: list[bool] = []
    for leaf, value in zip(leaves, values, strict=True):
        own = _own(table, leaf, leaves)
        explicit.append(own is not _DEFAULT)
        dim = default if own is _DEFAULT else own
        if not isinstance(value, Tensor):
            dims.append(None)
        elif dim is None or dim < value.dim():
            dims.append(dim)
        elif explicit[-1]:
            raise CaptureError(f"batch_dims says {dim} for {leaf.name}, which has {value.dim()} dimensions: give one "
                               "that it has, or None if it is the same for all micro-batches")
        else:
            dims.append(None)
    return _agreed(leaves, values, dims, explicit)


def one_dim(values: Sequence[Any], dim: int) -> Dims:
    """``dim`` for each tensor among ``values`` whose size there equals that of the first tensor with this dimension;
    otherwise ``None``."""
    sizes = [value.shape[dim] if isinstance(value, Tensor) and value.dim() > dim else None for value in values]
    first = next((size for size in sizes if size is not None), None)
    return tuple(dim if size is not None and size == first else None for size in sizes)


def target_dim(batch_dims: BatchDims) -> int | None:
    """The dimension along which targets are cut; ``None``: each micro-batch has the full target."""
    if isinstance(batch_dims, int):
        return batch_dims
    dim = batch_dims.get(TARGET_KEY, 0) if isinstance(batch_dims, Mapping) else 0
    _require_dim(dim, TARGET_KEY)
    return dim


def _agreed(leaves: Sequence[Leaf], values: Sequence[Any], dims: list[int | None], explicit: Sequence[bool]) -> Dims:
    """``dims``, checked: all tensors have the same size there, or size 1, which clears a default dimension."""
    sizes = {i: int(values[i].shape[dim]) for i, dim in enumerate(dims) if dim is not None}
    first = next((i for i in sizes if explicit[i]), next((i for i, size in sizes.items() if size != 1), None))
    for i, size in sizes.items():
        if first is None or size == sizes[first]:
            continue
        if size == 1 and not explicit[i]:
            dims[i] = None
            continue
        one, other = sorted((first, i))
        for offsets, bag in ((one, other), (other, one)):
            if _are_offsets(values[offsets], values[bag]):
                raise CaptureError(
                    f"{leaves[offsets].name} has {sizes[offsets]} entries and looks like the offsets of bags in "
                    f"{leaves[bag].name}, which no equal micro-batches can be cut of: give nn.EmbeddingBag a row of "
                    "values for each sample, padded to one length with its padding_idx, and no offsets")
        raise CaptureError(
            f"{leaves[one].name} has {sizes[one]} entries along dimension {dims[one]} and {leaves[other].name} has "
            f"{sizes[other]} along dimension {dims[other]}: give a batch of one size, or say which is the same for all "
            f"micro-batches, with batch_dims={{{leaves[other].argument!r}: None}}")
    return tuple(dims)


def _are_offsets(one: Any, other: Any) -> bool:
    """Whether ``one`` may be the offsets of bags in the integers ``other``, as for ``nn.EmbeddingBag``."""
    if not all(tensor.dim() == 1 and not tensor.is_floating_point() and not tensor.is_meta for tensor in (one, other)):
        return False
    begins = [int(begin) for begin in one]
    return begins[:1] == [0] and begins == sorted(begins) and begins[-1] <= len(other) and len(begins) > 1


class _Default:
    pass


_DEFAULT = _Default()


def _table(batch_dims: BatchDims, leaves: Sequence[Leaf]) -> tuple[int, Mapping[Any, Any]]:
    """The default dimension, and the explicit ones."""
    if isinstance(batch_dims, int) and not isinstance(batch_dims, bool) and batch_dims >= 0:
        return batch_dims, {}
    if isinstance(batch_dims, Mapping):
        known = {TARGET_KEY, *(leaf.argument for leaf in leaves), *(leaf.place for leaf in leaves
                                                                    if leaf.place is not None)}
        for key in batch_dims:
            if key not in known:
                names = ", ".join(dict.fromkeys(leaf.argument for leaf in leaves))
                raise CaptureError(f"batch_dims names {key!r:.60}, which is no argument of the example: it has {names}")
        return 0, batch_dims
    if isinstance(batch_dims, Sequence) and not isinstance(batch_dims, str):
        places = 1 + max((leaf.place for leaf in leaves if leaf.place is not None), default=-1)
        if len(batch_dims) != places:
            raise CaptureError(f"batch_dims has {len(batch_dims)} entries, but {places} arguments are given by "
                               "position: give one for each, or a mapping by name")
        return 0, dict(enumerate(batch_dims))
    raise CaptureError(f"batch_dims is {batch_dims!r:.60}, it must be the number of a dimension, or a mapping of such "
                       "by the names of arguments")


def _own(table: Mapping[Any, Any], leaf: Leaf, leaves: Sequence[Leaf]) -> Any:
    """The explicit dimension of ``leaf``, or ``_DEFAULT``: an entry of ``table`` is one dimension for an argument, or
    nested like the argument."""
    entry = table.get(leaf.argument, table.get(leaf.place, _DEFAULT) if leaf.place is not None else _DEFAULT)
    if entry is _DEFAULT or entry is None or isinstance(entry, int):
        _require_dim(entry, leaf.name)
        return entry
    inside = [other for other in leaves if other.argument == leaf.argument]
    nested = tree_flatten(entry)[0]
    if len(nested) != len(inside):
        raise CaptureError(f"batch_dims for {leaf.argument!r} has {len(nested)} entries, but the argument has "
                           f"{len(inside)} parts: give one number for all of them, or one for each, nested as it is")
    dim = nested[inside.index(leaf)]
    _require_dim(dim, leaf.name)
    return dim


def _require_dim(dim: object, name: str) -> None:
    if dim is not None and dim is not _DEFAULT and (type(dim) is not int or dim < 0):
        raise CaptureError(f"batch_dims is {dim!r:.60} for {name}, it must be the number of a dimension, or None if it "
                           "is the same for all micro-batches")


class Leaf(NamedTuple):
    """One leaf of ``(args, kwargs)``. ``argument``: the name of its argument in the model's forward. ``place``: the
    argument's position, if given by position. ``name``: the argument and the path inside it."""

    argument: str
    place: int | None
    name: str


def leaves_of(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The leaves of ``(args, kwargs)``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if the model's forward does not accept these arguments,
    and for numpy arrays.
    """
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"{type(model).__name__} is not called so, {error}: give args and kwargs as its forward "
                           "takes them") from None
    except ValueError:  # a C function has no signature
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
