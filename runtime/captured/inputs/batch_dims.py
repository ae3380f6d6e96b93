"""The dimension along which each tensor of a batch is cut into micro-batches, and tensors common to all of them.

A model's arguments, leaf by leaf: the argument of each leaf, and its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path

from weft.runtime.captured.captured import CaptureError

#: A user's choice: one dimension for all, or some for arguments, by name or by position.
BatchDims: TypeAlias = int | Mapping[Any, Any] | Sequence[Any]
#: A dimension for each leaf; ``None``: the same for all micro-batches.
Dims: TypeAlias = tuple[int | None, ...]
#: The name of the target among the arguments.
TARGET_KEY = "target"


def dims_of(asked: BatchDims, leaves: Sequence[Leaf], values: Sequence[Any]) -> Dims:
    """The dimension of each of ``values``, the leaves of a model's arguments, which ``leaves`` names.

    By default an argument's tensors are cut along dimension 0 (or the one number in ``asked``); those without that
    dimension, or with only one entry there, are the same for all micro-batches. Raises
    :class:`~weft.runtime.captured.captured.CaptureError` for an invalid dimension of an argument, and for tensors that
    disagree on the size of the batch.
    """
    default, table = _table(asked, leaves)
    found: list[int | None] = []
    said: list[bool] = []
    for leaf, value in zip(leaves, values, strict=True):
        own = _own(table, leaf, leaves)
        said.append(own is not _NOT_SAID)
        dim = default if own is _NOT_SAID else own
        if not isinstance(value, Tensor):
            found.append(None)
        elif dim is None or dim < value.dim():
            found.append(dim)
        elif said[-1]:
            raise CaptureError(f"batch_dims says {dim} for {leaf.name}, which has {value.dim()} dimensions: give one "
                               "that it has, or None if it is the same for all micro-batches")
        else:
            found.append(None)
    return _agreed(leaves, values, found, said)


def one_dim(values: Sequence[Any], dim: int) -> Dims:
    """``dim`` for all tensors among ``values`` with as many entries there as the first one that has that dimension."""
    sizes = [value.shape[dim] if isinstance(value, Tensor) and value.dim() > dim else None for value in values]
    first = next((size for size in sizes if size is not None), None)
    return tuple(dim if size is not None and size == first else None for size in sizes)


def target_dim(asked: BatchDims) -> int | None:
    """The dimension along which targets are cut; ``None``: each micro-batch has the whole target."""
    if isinstance(asked, int):
        return asked
    found = asked.get(TARGET_KEY, 0) if isinstance(asked, Mapping) else 0
    _require_dim(found, TARGET_KEY)
    return found


def _agreed(leaves: Sequence[Leaf], values: Sequence[Any], dims: list[int | None], said: Sequence[bool]) -> Dims:
    """``dims`` where all tensors have as many entries, except those that have one."""
    sizes = {i: int(values[i].shape[dim]) for i, dim in enumerate(dims) if dim is not None}
    first = next((i for i in sizes if said[i]), next((i for i, size in sizes.items() if size != 1), None))
    for i, size in sizes.items():
        if first is None or size == sizes[first]:
            continue
        if size == 1 and not said[i]:
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
    """Whether ``one`` is the offsets of bags of the integers ``other``, as for ``nn.EmbeddingBag``."""
    if not all(tensor.dim() == 1 and not tensor.is_floating_point() and not tensor.is_meta for tensor in (one, other)):
        return False
    begins = [int(begin) for begin in one]
    return begins[:1] == [0] and begins == sorted(begins) and begins[-1] <= len(other) and len(begins) > 1


class _NotSaid:
    pass


_NOT_SAID = _NotSaid()


def _table(asked: BatchDims, leaves: Sequence[Leaf]) -> tuple[int, Mapping[Any, Any]]:
    """The default dimension, and the explicit ones."""
    if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
        return asked, {}
    if isinstance(asked, Mapping):
        known = {TARGET_KEY, *(leaf.argument for leaf in leaves), *(leaf.place for leaf in leaves
                                                                    if leaf.place is not None)}
        for key in asked:
            if key not in known:
                names = ", ".join(dict.fromkeys(leaf.argument for leaf in leaves))
                raise CaptureError(f"batch_dims names {key!r:.60}, which is no argument of the example: it has {names}")
        return 0, asked
    if isinstance(asked, Sequence) and not isinstance(asked, str):
        places = 1 + max((leaf.place for leaf in leaves if leaf.place is not None), default=-1)
        if len(asked) != places:
            raise CaptureError(f"batch_dims has {len(asked)} entries, but {places} arguments are given by position: "
                               "give one for each, or a mapping by name")
        return 0, dict(enumerate(asked))
    raise CaptureError(f"batch_dims is {asked!r:.60}, it must be the number of a dimension, or a mapping of such by "
                       "the names of arguments")


def _own(table: Mapping[Any, Any], leaf: Leaf, leaves: Sequence[Leaf]) -> Any:
    """The explicit dimension of ``leaf``: for its whole argument, or nested like that."""
    said = table.get(leaf.argument, table.get(leaf.place, _NOT_SAID) if leaf.place is not None else _NOT_SAID)
    if said is _NOT_SAID or said is None or isinstance(said, int):
        _require_dim(said, leaf.name)
        return said
    inside = [other for other in leaves if other.argument == leaf.argument]
    nested = tree_flatten(said)[0]
    if len(nested) != len(inside):
        raise CaptureError(f"batch_dims for {leaf.argument!r} has {len(nested)} entries, but the argument has "
                           f"{len(inside)} parts: give one number for all of them, or one for each, nested as it is")
    found = nested[inside.index(leaf)]
    _require_dim(found, leaf.name)
    return found


def _require_dim(dim: object, name: str) -> None:
    if dim is not None and dim is not _NOT_SAID and (type(dim) is not int or dim < 0):
        raise CaptureError(f"batch_dims is {dim!r:.60} for {name}, it must be the number of a dimension, or None if it "
                           "is the same for all micro-batches")


class Leaf(NamedTuple):
    """One leaf of ``(args, kwargs)``. ``argument``: the name of its argument in the model's forward; ``place``: its
    position, if it was given by position; ``name``: of the leaf, with its path inside the argument."""

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
    except ValueError:  # a C function has none
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
