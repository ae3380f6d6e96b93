"""Batches of other shapes than the example's: the last one of an epoch, other lengths, another size in evaluation.

Rank 0 tells the others in each step whether the batch looks as the example did, without waiting for them. Where it does
not, all ranks say what they were given, and make what runs it, once a shape: the model is captured anew for these
micro-batches, cut at the same operators, and run in the order of the same plan, on the same parameters. A batch that
does not divide into micro-batches is run in two parts, of larger and of smaller ones, whose gradients add up. Where a
shape cannot be captured, or comes out as another graph, all ranks refuse the batch and go on.
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

#: What captures and cuts the model again for a batch of another shape: its arguments, and the number of micro-batches.
Alike: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], int], ModelDivision]
#: What cuts the model as a plan says: its stages, and how they are made for batches of other shapes.
Recut: TypeAlias = Callable[[Plan, Sequence[int]], tuple[ModelDivision, Alike]]
Looks: TypeAlias = list[tuple[tuple[int, ...], str] | None]
Key: TypeAlias = tuple[int, int, int, tuple[Any, ...]]


@dataclass
class Shape:
    """What runs ``plan`` on micro-batches of one shape, those behind the first ``before`` of ``whole``: ``running`` is
    what it was made ready as, by use."""

    cut: ModelDivision
    feeding: Feeding
    plan: Plan
    data: Data
    before: int
    whole: int
    running: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch: what runs it, the share of the batch that it is, and the micro-batches that this rank reads.
    """

    shape: Shape
    weight: float
    micro_batches: list[dict[str, Tensor]]


class Shapes:
    """All shapes that a pipeline has run, ``first`` being the example's. All ranks of ``session`` ask together."""

    def __init__(self, session: Session, first: Shape, alike: Alike) -> None:
        self.session, self.first, self.alike = session, first, alike
        self.known: dict[Key, Shape] = {}
        self.refused: dict[Key, str] = {}
        self._told: dist.Work | None = None

    def parts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any,
              with_target: bool) -> list[BatchPart]:
        """The batch as its parts: one, where it looks as the example.

        Raises :class:`~weft.runtime.captured.inputs.batch.BatchError` for what is no batch, and
        :class:`~weft.runtime.captured.inputs.batch.ShapeError`, on all ranks, for a shape that cannot run.
        """
        feeding = self.first.feeding
        if self._all_hear(lambda: self._is_first(args, kwargs, target)):
            return [BatchPart(self.first, 1.0, feeding.micro_batches(args, kwargs, target, with_target))]
        if not with_target and target is not None:
            feeding.micro_batches(args, kwargs, target, with_target)  # refuses it
        leaves = feeding.layout.flat(args, kwargs)
        targets, spec = tree_flatten(target)
        looks = self._merged([*map(_looks, leaves), *map(_looks, targets)] if target is not None else
                             [*map(_looks, leaves)], len(leaves))
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

    # -- what all ranks must know --------------------------------------------------------------------------------------

    def _is_first(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> bool:
        """Whether this rank's part of the batch looks as the example, or is none at all."""
        feeding = self.first.feeding
        try:
            leaves = feeding.layout.flat(args, kwargs)
            return feeding.layout.has_shapes_of(leaves) and feeding.has_target_of(target, feeding.layout.size(leaves))
        except BatchError:
            return True  # no shape of it would run: it is refused where it is cut

    def _all_hear(self, is_first: Callable[[], bool]) -> bool:
        """What rank 0 finds."""
        session = self.session
        if session.processes == 1:
            return is_first()
        if self._told is not None:
            self._told.wait()  # all have begun the step before
        is_teller = session.process(session.rank) == 0
        mine = is_teller and is_first()
        said = torch.tensor([int(mine)])
        if not is_teller:
            session.watch.doing("waiting for rank 0 to say how the batch looks", [0])
        self._told = dist.broadcast(said, session.first_place, group=session.members, async_op=True)
        if not is_teller and self._told is not None:
            self._told.wait()
        return mine if is_teller else bool(said)

    def _merged(self, mine: Looks, count: int) -> Looks:
        """How the whole batch looks, of which each rank was given some tensors: ``count`` leaves, then the target's."""
        told: list[Looks] = self.session.everywhere(mine, "comparing how the batch looks")
        found: Looks = [None] * max(map(len, told))
        owner = [0] * len(found)
        for process, looks in enumerate(told):
            for i, look in enumerate(looks):
                if look is not None and found[i] is None:
                    found[i], owner[i] = look, process
                elif look is not None and look != found[i]:
                    what = self.first.feeding.layout.leaves[i].name if i < count else "target"
                    raise BatchError(f"{what} is {_said(look)} on rank {process}, but {_said(found[i])} on rank "
                                     f"{owner[i]}: give all ranks, and all copies, batches of one shape")
        return found

    def _pieces(self, size: int | None) -> list[tuple[int, int, int]]:
        """Of each part: how many micro-batches, how large each is, and where the part begins."""
        count = self.first.plan.micro_batches
        if size is None:
            return [(count, 0, 0)]
        if size == 0:
            raise ShapeError("the batch is empty: give at least one sample")
        small, more = divmod(size, count)
        return [(n, each, begin) for n, each, begin in (
            (more, small + 1, 0), (count - more, small, more * (small + 1))) if n and each]

    # -- what runs them ------------------------------------------------------------------------------------------------

    def _shape(self, mine: Sequence[Any], looks: Looks, place: tuple[int, int, int], size: int) -> Shape:
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
        given = session.everywhere(list(mine), "handing on a batch of another shape")
        leaves = [next((own[i] for own in given if own[i] is not None), None) for i in range(len(mine))]
        args, kwargs = tree_unflatten(leaves, layout.spec)
        session.watch.joined()  # capturing may take longer than a wait
        session.watch.doing("capturing the model for batches of another shape")
        cut, why = None, ""
        try:
            plan = shortened(self.first.plan, count)
            cut = self.alike(args, kwargs, count)
        except (CaptureError, ValueError) as error:
            why = str(error).splitlines()[0]
        for process, said in enumerate(session.everywhere(why, "capturing the model for batches of another shape")):
            if said:
                shapes = ", ".join(f"{leaf.name} {look}" for leaf, look in zip(layout.leaves, key[3], strict=True)
                                   if look is not None)
                self.refused[key] = f"micro-batches of {shapes} cannot run, as rank {process} finds: {said}"
                raise ShapeError(self.refused[key])
        assert cut is not None
        looks = [leaf if not isinstance(leaf, Tensor) else _piece(leaf, dim, 0, leaf.shape[dim] // count
                                                                  if dim is not None else 0).to("meta")
                 for leaf, dim in zip(leaves, layout.dims, strict=True)]
        session.watch.begin()
        return Shape(cut, self.first.feeding.alike(cut, layout.alike(looks, count)), plan,
                     Data(first=session.replica * whole + before), before, whole)


def _piece(leaf: Any, dim: int | None, begin: int, length: int) -> Any:
    """The entries from ``begin`` on along ``dim``; all, where it is not cut."""
    if not isinstance(leaf, Tensor) or dim is None or leaf.dim() <= dim:
        return leaf
    return leaf.narrow(dim, begin, length)


def _looks(leaf: Any) -> tuple[tuple[int, ...], str] | None:
    return (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, Tensor) else None


def _said(look: Any) -> str:
    return f"{look[0]} of {look[1]}"
