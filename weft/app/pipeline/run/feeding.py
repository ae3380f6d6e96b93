"""What each rank reads of a batch, and the batch as its stages take it."""

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

#: The label that torch's cross-entropy leaves out, and with it the models of transformers.
IGNORED = -100


class Feeding:
    """The batches of a pipeline of ``cut``, whose stages are on ``stage_ranks``, as ``rank`` hands them over: cut as
    ``layout`` says, and the target along ``target_dim`` (``None``: each micro-batch has all of it). Targets look like
    ``example``, if there is one."""

    def __init__(self, cut: ModelDivision, stage_ranks: Sequence[int], rank: int, layout: BatchLayout, goal: Goal,
                 target_dim: int | None, example: Any = None) -> None:
        self.layout, self.goal, self.rank, self.target_dim = layout, goal, rank, target_dim
        self.stage_ranks = tuple(stage_ranks)
        self.looks = None if example is None else tree_flatten(signature_of(example))[0]
        ports = cut.stages(()).ports
        #: By rank: the leaves of the batch that its stages read, by the names that these have for them.
        self.read: dict[int, set[str]] = {each: set() for each in stage_ranks}
        for stage, each in enumerate(stage_ranks):
            self.read[each].update(name for name in ports[stage].takes if name.startswith(BATCH))
        self.last = stage_ranks[-1]
        self._warned = False

    @cached_property
    def arguments(self) -> dict[str, tuple[int, ...]]:
        """Which ranks read each argument, the target among them where the loss is given one."""
        found: dict[str, set[int]] = {}
        for name, leaf in zip(self.layout.names, self.layout.leaves, strict=True):
            found.setdefault(leaf.argument, set()).update(each for each, read in self.read.items() if name in read)
        if self.goal.names:
            found.setdefault(TARGET_KEY, set()).add(self.last)
        return {name: tuple(sorted(ranks)) for name, ranks in found.items()}

    def needs(self, name: str) -> bool:
        """Whether this rank reads the argument ``name``. Raises :class:`~weft.runtime.captured.inputs.batch.BatchError`
        for one that there is not."""
        if name not in self.arguments:
            raise BatchError(f"the pipeline has no argument {name!r:.60}: it has {', '.join(self.arguments)}")
        return self.rank in self.arguments[name]

    def micro_batches(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any,
                      with_target: bool) -> list[dict[str, Tensor]]:
        """What this rank's stages take, by micro-batch and name.

        Raises :class:`~weft.runtime.captured.inputs.batch.BatchError` for what does not fit, or is not there.
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
        """Warn, once, where a mean loss weighs the labels of ``micro_batches`` unequally."""
        if not self._warned and self.rank == self.last and (why := unequal_labels(micro_batches)) is not None:
            self._warned = True
            warnings.warn(why, stacklevel=2)

    def has_target_of(self, target: Any, size: int | None) -> bool:
        """Whether ``target``, if it is there, has the shapes that this is for: those of the example, or as many entries
        as ``size``."""
        leaves, spec = tree_flatten(target)
        if target is None or spec != self.goal.target or not all(isinstance(leaf, Tensor) for leaf in leaves):
            return True  # what is wrong with it is said elsewhere
        if self.looks is not None:
            return bool(signature_of(leaves) == self.looks)
        dim = self.target_dim
        return dim is None or size is None or all(leaf.dim() <= dim or leaf.shape[dim] == size for leaf in leaves)

    def require_entries(self, leaf: Tensor, size: int | None) -> None:
        """Raise :class:`~weft.runtime.captured.inputs.batch.BatchError` for a part of the target that has not an entry
        for each of ``size`` samples."""
        dim = self.target_dim
        if size is not None and dim is not None and leaf.dim() > dim and leaf.shape[dim] != size:
            raise BatchError(f"target has {leaf.shape[dim]} entries along dimension {dim}, but the batch has {size}: "
                             "give one for each sample")

    def alike(self, cut: ModelDivision, layout: BatchLayout) -> Feeding:
        """The same for batches of another shape."""
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
            if self.looks is not None and signature_of(leaf) != self.looks[i]:
                raise BatchError(f"target is {signature_of(leaf)}, but the example was {self.looks[i]}: give what the "
                                 "pipeline was made with")
            yield leaf.chunk(count, dim)


def unequal_labels(micro_batches: Sequence[Mapping[str, Tensor]]) -> str | None:
    """A sentence where ``micro_batches`` have unequal numbers of labels that count; ``None`` where they do not."""
    for name, first in (micro_batches[0] if micro_batches else {}).items():
        if first.dtype == torch.int64:
            counts = [int((part[name] != IGNORED).sum()) for part in micro_batches]
            if len(set(counts)) > 1:
                return (f"the micro-batches have {min(counts)} to {max(counts)} labels other than {IGNORED}, which a "
                        "mean loss of each weighs unequally: for the mean over all labels of the batch, let loss "
                        "return (sum, count)")
    return None


def target_spec(target: Any) -> TreeSpec:
    """How ``target`` is nested; without an example, one tensor."""
    found: TreeSpec = tree_flatten(0 if target is None else target)[1]
    return found
