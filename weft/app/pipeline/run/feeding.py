"""The arguments that each rank reads, and batches as the micro-batches of its stages."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten

from weft.app.pipeline.lib.arguments import signature_of
from weft.runtime.captured.cut import BATCH
from weft.runtime.captured.division import Goal, ModelDivision
from weft.runtime.captured.inputs.batch import BatchError, BatchLayout, require_divides
from weft.runtime.captured.inputs.batch_dims import TARGET_KEY

#: Label that torch's cross-entropy ignores by default.
IGNORED = -100


class Feeding:
    """Divides batches for ``rank`` of a pipeline of ``cut``, whose stages are on ``stage_ranks``: arguments by
    ``layout``, the target along ``target_dim`` (``None``: every micro-batch gets the whole target). Targets have the
    structure and shapes of ``example``, if there is one."""

    def __init__(self, cut: ModelDivision, stage_ranks: Sequence[int], rank: int, layout: BatchLayout, goal: Goal,
                 target_dim: int | None, example: Any = None) -> None:
        self.layout, self.goal, self.rank, self.target_dim = layout, goal, rank, target_dim
        self.stage_ranks = tuple(stage_ranks)
        self.example = None if example is None else tree_flatten(signature_of(example))[0]
        ports = cut.stages(()).ports
        #: By rank: the names of the batch's leaves that its stages read.
        self.read: dict[int, set[str]] = {each: set() for each in stage_ranks}
        for stage, each in enumerate(stage_ranks):
            self.read[each].update(name for name in ports[stage].takes if name.startswith(BATCH))
        self.last = stage_ranks[-1]
        self._warned = False

    @cached_property
    def arguments(self) -> dict[str, tuple[int, ...]]:
        """By argument, including the target if the loss takes one: the ranks that read it."""
        found: dict[str, set[int]] = {}
        for name, leaf in zip(self.layout.names, self.layout.leaves, strict=True):
            found.setdefault(leaf.argument, set()).update(each for each, read in self.read.items() if name in read)
        if self.goal.names:
            found.setdefault(TARGET_KEY, set()).add(self.last)
        return {name: tuple(sorted(ranks)) for name, ranks in found.items()}

    def needs(self, name: str) -> bool:
        """Whether this rank reads the argument ``name``. Raises :class:`~weft.runtime.captured.inputs.batch.BatchError`
        for an unknown one."""
        if name not in self.arguments:
            raise BatchError(f"the pipeline has no argument {name!r:.60}: it has {', '.join(self.arguments)}")
        return self.rank in self.arguments[name]

    def micro_batches(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any,
                      with_target: bool) -> list[dict[str, Tensor]]:
        """The inputs of this rank's stages, by micro-batch and name.

        Raises :class:`~weft.runtime.captured.inputs.batch.BatchError` for missing arguments and wrong shapes.
        """
        found, size = self.layout.micro_batches(args, kwargs, self.read.get(self.rank, set()))
        if not with_target:
            if target is not None:
                raise BatchError("target was given, but the pipeline has no loss to hand it to: give loss= to "
                                 "weft.pipeline, or leave target out")
            return found
        if target is None and self.rank != self.last and self.goal.names:
            return found
        for name, parts in zip(self.goal.names, self._targets(target, size), strict=True):
            for micro_batch, part in zip(found, parts, strict=True):
                micro_batch[name] = part
        return found

    def warn_of_means(self, micro_batches: Sequence[Mapping[str, Tensor]]) -> None:
        """Warn once if a mean loss weighs the labels of ``micro_batches`` unequally."""
        if not self._warned and self.rank == self.last and (why := unequal_labels(micro_batches)) is not None:
            self._warned = True
            warnings.warn(why, stacklevel=2)

    def has_target_of(self, target: Any, size: int | None) -> bool:
        """Whether ``target``, if given, has the shapes of the example, or, without an example, ``size`` entries."""
        leaves, spec = tree_flatten(target)
        if target is None or spec != self.goal.target or not all(isinstance(leaf, Tensor) for leaf in leaves):
            return True  # the error is reported elsewhere
        if self.example is not None:
            return bool(signature_of(leaves) == self.example)
        dim = self.target_dim
        return dim is None or size is None or all(leaf.dim() <= dim or leaf.shape[dim] == size for leaf in leaves)

    def require_entries(self, leaf: Tensor, size: int | None) -> None:
        """Raise :class:`~weft.runtime.captured.inputs.batch.BatchError` for a part of the target without one
        entry for each of ``size`` samples."""
        dim = self.target_dim
        if size is not None and dim is not None and leaf.dim() > dim and leaf.shape[dim] != size:
            raise BatchError(f"target has {leaf.shape[dim]} entries along dimension {dim}, but the batch has {size}: "
                             "give one for each sample")

    def alike(self, cut: ModelDivision, layout: BatchLayout) -> Feeding:
        """The same pipeline's feeding for batches of another shape."""
        return Feeding(cut, self.stage_ranks, self.rank, layout, self.goal, self.target_dim)

    def _targets(self, target: Any, size: int | None) -> Iterator[Sequence[Tensor]]:
        leaves, spec = tree_flatten(target)
        if target is None or spec != self.goal.target:
            raise BatchError(f"target is {type(target).__name__}, but the pipeline was made for "
                             + ("one tensor: give target=TENSOR" if self.goal.target == tree_flatten(0)[1] else
                                f"what is nested as {' '.join(str(self.goal.target).split()):.120}"))
        dim, count = self.target_dim, self.layout.count
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor) or (dim is not None and leaf.dim() <= dim):
                raise BatchError(f"target's part {i} is no tensor with a batch dimension: give one")
            if dim is None:
                yield [leaf] * count
                continue
            self.require_entries(leaf, size)
            require_divides(leaf.shape[dim], count)
            if self.example is not None and signature_of(leaf) != self.example[i]:
                raise BatchError(f"target is {signature_of(leaf)}, but the example was {self.example[i]}: give "
                                 "what the pipeline was made with")
            yield leaf.chunk(count, dim)


def unequal_labels(micro_batches: Sequence[Mapping[str, Tensor]]) -> str | None:
    """A warning if ``micro_batches`` have unequal numbers of labels that are not ignored; else ``None``."""
    for name, first in (micro_batches[0] if micro_batches else {}).items():
        if first.dtype == torch.int64:
            counts = [int((part[name] != IGNORED).sum()) for part in micro_batches]
            if len(set(counts)) > 1:
                return (f"the micro-batches have {min(counts)} to {max(counts)} labels other than {IGNORED}, which a "
                        "mean loss of each weighs unequally: for the mean over all labels of the batch, let loss "
                        "return (sum, count)")
    return None


def target_spec(target: Any) -> TreeSpec:
    """The structure of ``target``; one tensor without an example."""
    found: TreeSpec = tree_flatten(0 if target is None else target)[1]
    return found
