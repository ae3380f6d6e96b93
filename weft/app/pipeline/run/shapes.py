"""Batches of other shapes than the example's: the last one of an epoch, other lengths, another size in evaluation.

In each step rank 0 broadcasts whether the batch has the example's shape, without waiting for the others. If not, the
ranks compare their inputs, and the model is captured again, once a shape: cut at the same operators, with the same
parameters, in the order of the same plan. A batch that does not divide into micro-batches runs in two parts, of larger
and of smaller micro-batches, whose gradients add up. If a shape cannot be captured, or its graph differs, all ranks
refuse the batch, and training may continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from weft.app.pipeline.run.feeding import Feeding
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.division import Data, ModelDivision
from weft.runtime.captured.inputs.batch import BatchError, ShapeError
from weft.runtime.plan.lanes import shortened
from weft.runtime.plan.plan import Plan
from weft.runtime.ranks.session import Session

#: Captures and cuts the model for a batch of another shape, from its arguments and the number of micro-batches.
Recapture: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], int], ModelDivision]
#: Cuts the model for a plan: its stages, and the function that captures them for batches of other shapes.
Recut: TypeAlias = Callable[[Plan, Sequence[int]], tuple[ModelDivision, Recapture]]
Signatures: TypeAlias = list[tuple[tuple[int, ...], str] | None]
Key: TypeAlias = tuple[int, int, int, tuple[Any, ...]]


@dataclass
class Shape:
    """The stages for micro-batches of one shape: those numbered from ``before`` on among ``whole`` in a batch.
    ``running``: the prepared executors by use."""

    cut: ModelDivision
    feeding: Feeding
    plan: Plan
    data: Data
    before: int
    whole: int
    running: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch: its shape, its share of the batch, and the tensors of its micro-batches that this rank reads.
    """

    shape: Shape
    weight: float
    micro_batches: list[dict[str, Tensor]]


class Shapes:
    """All shapes that a pipeline has run; ``first`` is the example's. Methods are collective."""

    def __init__(self, session: Session, first: Shape, recapture: Recapture) -> None:
        self.session, self.first, self.recapture = session, first, recapture
        self.known: dict[Key, Shape] = {}
        self.refused: dict[Key, str] = {}
        self._broadcast: dist.Work | None = None

    def parts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any,
              with_target: bool) -> list[BatchPart]:
        """The parts of the batch: one if it has the example's shape.

        Raises :class:`~weft.runtime.captured.inputs.batch.BatchError` for an invalid batch, and
        :class:`~weft.runtime.captured.inputs.batch.ShapeError`, on all ranks, for a shape that cannot run.
        """
        feeding = self.first.feeding
        if self._rank_0_finds(lambda: self._is_first(args, kwargs, target)):
            return [BatchPart(self.first, 1.0, feeding.micro_batches(args, kwargs, target, with_target))]
        if not with_target and target is not None:
            feeding.micro_batches(args, kwargs, target, with_target)  # refuses it
        leaves = feeding.layout.flat(args, kwargs)
        targets, spec = tree_flatten(target)
        looks = self._merged([*map(_signature, leaves), *map(_signature, targets)] if target is not None else
                             [*map(_signature, leaves)], len(leaves))
        feeding.layout.require_kind(looks[:len(leaves)])
        seen = [None if look is None else torch.empty(look[0], device="meta") for look in looks]
        size = feeding.layout.size(seen[:len(leaves)])
        for leaf in seen[len(leaves):]:
            if leaf is not None:
                feeding.require_entries(leaf, size)
        found, whole = [], 0
        pieces = self._pieces(size)
        for count, each, begin in pieces:
            dims = feeding.layout.dims
            mine = [_piece(leaf, dim, begin, count * each) for leaf, dim in zip(leaves, dims, strict=True)]
            shape = self._shape(mine, looks[:len(leaves)], (whole, sum(n for n, _, _ in pieces), count), each)
            part = None if target is None else tree_unflatten(
                [_piece(leaf, feeding.target_dim, begin, count * each) for leaf in targets], spec)
            given, named = tree_unflatten(mine, feeding.layout.spec)
            share = 1.0 if size is None else count * each / size
            found.append(BatchPart(shape, share, shape.feeding.micro_batches(given, named, part, with_target)))
            whole += count
        return found

    # -- agreement of the ranks ----------------------------------------------------------------------------------------

    def _is_first(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> bool:
        """Whether this rank's part of the batch has the example's shape, or is no batch at all."""
        feeding = self.first.feeding
        try:
            leaves = feeding.layout.flat(args, kwargs)
            return feeding.layout.has_shapes_of(leaves) and feeding.has_target_of(target, feeding.layout.size(leaves))
        except BatchError:
            return True  # invalid in any shape: refused when it is cut

    def _rank_0_finds(self, is_first: Callable[[], bool]) -> bool:
        """Rank 0's result, on all ranks."""
        session = self.session
        if session.processes == 1:
            return is_first()
        if self._broadcast is not None:
            self._broadcast.wait()  # all have begun the step before
        is_source = session.process(session.rank) == 0
        mine = is_source and is_first()
        result = torch.tensor([int(mine)])
        if not is_source:
            session.watch.doing("waiting for rank 0 to compare the batch's shape", [0])
        self._broadcast = dist.broadcast(result, session.first_place, group=session.members, async_op=True)
        if not is_source and self._broadcast is not None:
            self._broadcast.wait()
        return mine if is_source else bool(result)

    def _merged(self, mine: Signatures, count: int) -> Signatures:
        """Shapes and dtypes of the whole batch from those of all ranks: ``count`` leaves, then the target's."""
        gathered: list[Signatures] = self.session.everywhere(mine, "comparing the batch's shapes")
        found: Signatures = [None] * max(map(len, gathered))
        owner = [0] * len(found)
        for process, looks in enumerate(gathered):
            for i, look in enumerate(looks):
                if look is not None and found[i] is None:
                    found[i], owner[i] = look, process
                elif look is not None and look != found[i]:
                    what = self.first.feeding.layout.leaves[i].name if i < count else "target"
                    raise BatchError(f"{what} is {_text(look)} on rank {process}, but {_text(found[i])} on rank "
                                     f"{owner[i]}: give all ranks, and all copies, batches of one shape")
        return found

    def _pieces(self, size: int | None) -> list[tuple[int, int, int]]:
        """By part: number of micro-batches, samples of each, first sample."""
        count = self.first.plan.micro_batches
        if size is None:
            return [(count, 0, 0)]
        if size == 0:
            raise ShapeError("the batch is empty: give at least one sample")
        small, more = divmod(size, count)
        return [(n, each, begin) for n, each, begin in (
            (more, small + 1, 0), (count - more, small, more * (small + 1))) if n and each]

    # -- their stages --------------------------------------------------------------------------------------------------

    def _shape(self, mine: Sequence[Any], looks: Signatures, place: tuple[int, int, int], size: int) -> Shape:
        layout, (before, whole, count) = self.first.feeding.layout, place
        micro = tuple(None if look is None else (*(size if i == dim else n for i, n in enumerate(look[0])),)
                      for look, dim in zip(looks, layout.dims, strict=True))
        if place == (0, self.first.plan.micro_batches, self.first.plan.micro_batches) and all(
                look is None or not isinstance(like, Tensor) or tuple(like.shape) == look
                for look, like in zip(micro, layout.examples, strict=True)):
            return self.first
        key = (*place, micro)
        if key in self.refused:
            raise ShapeError(self.refused[key])
        if key not in self.known:
            self.known[key] = self._made(key, mine, before, whole, count)
        return self.known[key]

    def _made(self, key: Key, mine: Sequence[Any], before: int, whole: int, count: int) -> Shape:
        session, layout = self.session, self.first.feeding.layout
        given = session.everywhere(list(mine), "exchanging a batch of another shape")
        leaves = [next((own[i] for own in given if own[i] is not None), None) for i in range(len(mine))]
        args, kwargs = tree_unflatten(leaves, layout.spec)
        session.watch.joined()  # capturing may take longer than a wait
        session.watch.doing("capturing the model for batches of another shape")
        cut, why = None, ""
        try:
            plan = shortened(self.first.plan, count)
            cut = self.recapture(args, kwargs, count)
        except (CaptureError, ValueError) as error:
            why = str(error).splitlines()[0]
        for process, reason in enumerate(session.everywhere(why, "capturing the model for batches of another shape")):
            if reason:
                shapes = ", ".join(f"{leaf.name} {look}" for leaf, look in zip(layout.leaves, key[3], strict=True)
                                   if look is not None)
                self.refused[key] = f"micro-batches of {shapes} cannot run, as rank {process} finds: {reason}"
                raise ShapeError(self.refused[key])
        assert cut is not None
        looks = [leaf if not isinstance(leaf, Tensor) else _piece(leaf, dim, 0, leaf.shape[dim] // count
                                                                  if dim is not None else 0).to("meta")
                 for leaf, dim in zip(leaves, layout.dims, strict=True)]
        session.watch.begin()
        return Shape(cut, self.first.feeding.alike(cut, layout.alike(looks, count)), plan,
                     Data(first=session.replica * whole + before), before, whole)


def _piece(leaf: Any, dim: int | None, begin: int, length: int) -> Any:
    """The entries from ``begin`` on along ``dim``; all of an undivided value."""
    if not isinstance(leaf, Tensor) or dim is None or leaf.dim() <= dim:
        return leaf
    return leaf.narrow(dim, begin, length)


def _signature(leaf: Any) -> tuple[tuple[int, ...], str] | None:
    return (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, Tensor) else None


def _text(look: Any) -> str:
    return f"{look[0]} of {look[1]}"
