"""Checks of the arguments of :func:`weft.pipeline`, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from weft.app.pipeline.lib.options import PipelineOptions
from weft.runtime.captured.captured import CaptureError
from weft.runtime.plan.plan import Plan
from weft.solver.schedule import Schedule

_OPERATORS = "it needs the model's operators, which are unknown with split"
_ONE_BY_ONE = "it runs operators one by one, which compiled stages do not"
_HOW = "both determine how stages are computed or in which order"
#: Pairs of options that exclude each other, with the reason.
EXCLUSIVE: Mapping[tuple[str, str], str] = {
    ("split", "cuts"): "both determine where the model is cut",
    ("compile", "split"): _OPERATORS, ("memory_plan", "split"): _OPERATORS, ("co_shard", "split"): _OPERATORS,
    ("memory_plan", "compile"): _ONE_BY_ONE, ("co_shard", "compile"): _ONE_BY_ONE,
    **{("backends", name): _HOW for name in ("compile", "split", "autocast", "memory_plan", "plan", "schedule",
                                             "co_shard")},
    ("backends", "fully_shard"): "they are built on the storage of parameters, which it frees between steps",
    ("tensor_parallel", "fully_shard"): "it shards whole parameters",
    ("tensor_parallel", "split"): "it divides operators, which are unknown with split",
    ("tensor_parallel", "backends"): "they compute on whole tensors",
    ("tensor_parallel", "co_shard"): "it computes on whole tensors",
    ("tensor_parallel", "memory"): "memory is planned for whole parameters",
    ("tensor_parallel", "memory_plan"): "it keeps all activations"}


def arguments_of(args: object, kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example's arguments.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if they are not a tuple and a mapping by names.
    """
    if isinstance(args, Tensor | str | Mapping) or not isinstance(args, Sequence):
        raise CaptureError(f"args is {type(args).__name__}, it must be a tuple of the model's arguments: for one, give "
                           "(x,); arguments by name go into kwargs")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CaptureError(f"kwargs is {type(kwargs).__name__}, it must be a mapping of the model's arguments by name")
    return tuple(args), dict(kwargs or {})


def signature_of(example: Any) -> Any:
    """Shapes and dtypes of the tensors in ``example``, and type names of its other leaves."""
    return tree_map(lambda leaf: f"{tuple(leaf.shape)} {leaf.dtype}" if isinstance(leaf, Tensor)
                    else type(leaf).__name__, example)


def require_compatible(options: PipelineOptions) -> None:
    """Refuse a pair of :data:`EXCLUSIVE`.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    given = {name for name in {name for pair in EXCLUSIVE for name in pair} if (name == "compile" and options.compile)
             or (name != "compile" and getattr(options, name) not in (None, False))}
    if options.memory_plan in ("auto", "keep"):
        given.discard("memory_plan")
    for (one, other), why in EXCLUSIVE.items():
        if {one, other} <= given:
            raise CaptureError(f"{one} does not go with {other}: {why}; leave one of them out")


def require_plan(options: PipelineOptions) -> None:
    """Refuse a schedule, a plan or cuts of a wrong type.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    if not isinstance(options.schedule, str | os.PathLike | Schedule | None):
        raise CaptureError(f"schedule is {type(options.schedule).__name__}, it must be a schedule, its file, or the "
                           "name of a published one")
    if not isinstance(options.plan, str | os.PathLike | Plan | None):
        raise CaptureError(f"plan is {type(options.plan).__name__}, it must be a plan or its file")
    cuts = () if options.cuts is None else options.cuts
    if isinstance(cuts, str) or not isinstance(cuts, Sequence):
        raise CaptureError(f"cuts is {options.cuts!r:.60}, it must be a list of numbers of operators")
    for place in cuts:
        if type(place) is not int:
            raise CaptureError(f"cuts has {place!r:.60}, it must have numbers of operators: the names of submodules go "
                               "into split")
