"""All cuts of one layout with their rising bounds, and the cuts already searched.

The cuts of one layout as problems side by side, and carrying of orders from one cut to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import numpy.typing as npt

from weft.models.candidates.build import ModelCandidate
from weft.models.candidates.stages import Backward
from weft.models.cuts.enumeration import MOST, Ground, ListedCuts, enumerated
from weft.solver.control.clock import checkpoint
from weft.solver.pipeline import Pipeline
from weft.solver.timing import DeadlockError, Orders
from weft.solver.variants.bounds import Variants, VariantWait, makespan_bounds, quick_bounds
from weft.solver.variants.fixed_orders import fitting, makespans

#: Number of cuts whose problems are in memory at a time, and the time of a quick bound as a share of a full one.
_AT_ONCE, _QUICK = 4096, 0.08
#: The number of operations (0.1 s) that limits the cuts to which an order is carried: a quarter of them have the least
#: bounds, the others are nearest to the order's cut.
MOST_CARRIED = 5_000_000


@dataclass(eq=False)
class CutSpace:
    """The contiguous cuts into one layout, for N micro-batches. Times in ns.

    ``candidate``: the block problem of a cut. Before :meth:`open` only ``floor`` is known, a bound on all.
    """

    ground: Ground
    backward: Backward
    micro_batches: int
    candidate: Callable[[tuple[int, ...]], ModelCandidate]
    cuts: ListedCuts | None = None
    #: Per cut, whether its bound is final here.
    bounded: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    #: Cuts searched elsewhere, with their bounds: they are no longer listed.
    taken: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        """A lower bound on every cut: all the work, divided by the GPUs' paces."""
        return ceil(self.micro_batches * int(self.ground.rest[0]) / sum(self.ground.paces))

    @property
    def least(self) -> int | None:
        """A lower bound on every cut not taken by :meth:`take` or ruled out; None if none is left."""
        if self.cuts is None:
            return self.floor
        known = [int(self.cuts.bounds.min())] if len(self.cuts) else []
        left_out = [] if self.cuts.left_out is None else [self.cuts.left_out]
        return max(self.floor, min(known + left_out)) if known or left_out else None

    @property
    def waiting(self) -> bool:
        """Whether :meth:`tighten` has any work left."""
        return self.cuts is not None and not self.bounded.all()

    def forget(self) -> None:
        """Drop all cuts, as before :meth:`open`."""
        self.cuts = None
        self.bounded = self.bounded[:0]
        self.taken.clear()

    def open(self, below: int, most: int = MOST) -> int:
        """List the cuts whose bound is less than ``below``, or ``most`` of them; again if some were left out. Returns
        the number not ruled out by first bounds. If time ends during the listing, the list is unchanged."""
        cuts = enumerated(self.ground, self.micro_batches, below, most)
        for first in range(0, len(cuts), _AT_ONCE):
            checkpoint()
            some = slice(first, first + _AT_ONCE)
            raised = quick_bounds(self._variants(cuts.borders[some]), self.micro_batches, first=True)
            cuts.bounds[some] = np.maximum(cuts.bounds[some], raised)
        self.cuts, self.bounded = cuts, np.zeros(len(cuts), dtype=np.bool_)
        self.narrow(below)
        for borders in self.taken:
            self.take(borders)
        return len(cuts)

    @property
    def complete(self) -> bool:
        """Whether all cuts not ruled out are listed."""
        return self.cuts is not None and self.cuts.left_out is None

    def narrow(self, below: int) -> None:
        """Drop the cuts whose bound is not less than ``below``."""
        if self.cuts is not None and (len(self.cuts) or self.cuts.left_out is not None):
            kept = self.cuts.bounds < below
            left_out = self.cuts.left_out
            self._keep(kept, None if left_out is None or left_out >= below else left_out)

    def _keep(self, kept: npt.NDArray[np.bool_], left_out: int | None) -> None:
        assert self.cuts is not None
        self.cuts = ListedCuts(self.cuts.borders[kept], self.cuts.bounds[kept], left_out)
        self.bounded = self.bounded[kept]

    def tighten(self, most: int, below: int) -> float:
        """Raise the bounds of up to ``most`` cuts, least bounds first; returns their number. Cuts ruled out by a quick
        bound, not below ``below``, count by its small cost."""
        looked_at = 0.0
        if self.cuts is None:
            return looked_at
        waiting = np.flatnonzero(~self.bounded)
        if len(waiting) > most:
            waiting = waiting[np.argpartition(self.cuts.bounds[waiting], most)[:most]]
        for first in range(0, len(waiting), _AT_ONCE):
            checkpoint()
            some = waiting[first:first + _AT_ONCE]
            variants = self._variants(self.cuts.borders[some])
            raised = quick_bounds(variants, self.micro_batches)
            left = np.flatnonzero(raised < below)
            if len(left):
                raised[left] = makespan_bounds(variants.chosen(left), self.micro_batches)
            self.cuts.bounds[some] = np.maximum(self.cuts.bounds[some], raised)
            self.bounded[some] = True
            looked_at += len(left) + _QUICK * len(some)
        return looked_at

    def raise_bound(self, borders: tuple[int, ...], bound: int) -> None:
        """Adopt a bound on one cut."""
        at = self._at(borders)
        if at is not None and self.cuts is not None:
            self.cuts.bounds[at] = max(int(self.cuts.bounds[at]), bound)

    def neighbours(self, borders: tuple[int, ...], pipeline: Pipeline,
                   orders: Orders) -> list[tuple[tuple[int, ...], int]]:
        """The cuts reached from ``borders`` by moving one layer to another stage, each with its bound. Cuts on which
        ``orders`` of the blocks of ``pipeline``, the cut ``borders``, are shortest come first, even if they do not fit
        there."""
        cuts = _moved(borders)
        if not len(cuts):
            return []
        variants = self._variants(cuts)
        times = makespans(variants, orders_of_stages(pipeline, orders), self.micro_batches)
        bounds = makespan_bounds(variants, self.micro_batches)
        return [(tuple(map(int, cuts[i])), int(bounds[i])) for i in np.argsort(times, kind="stable")]

    def shorter(self, borders: tuple[int, ...], pipeline: Pipeline, orders: Orders) -> tuple[int, ...] | None:
        """Of the cuts reached from ``borders`` by moving one layer, the one on which ``orders`` of the blocks of
        ``pipeline``, the cut ``borders``, fit and are shortest, if they are shorter there than on ``borders``."""
        cuts = np.concatenate([np.array([borders], dtype=np.int16), _moved(borders)])
        variants = self._variants(cuts)
        rows = orders_of_stages(pipeline, orders)
        fits = fitting(variants, rows)
        times = makespans(variants, rows, self.micro_batches)
        best = int(np.argmin(np.where(fits, times, np.iinfo(np.int64).max)))
        return tuple(map(int, cuts[best])) if fits[best] and times[best] < times[0] else None

    def take(self, borders: tuple[int, ...]) -> int:
        """Remove a cut to be searched elsewhere; returns its bound."""
        known, at = self.taken.get(borders, self.floor), self._at(borders)
        if at is not None and self.cuts is not None:
            known = max(known, int(self.cuts.bounds[at]))
            self._keep(np.arange(len(self.cuts)) != at, self.cuts.left_out)
        self.taken[borders] = known
        return known

    def _at(self, borders: tuple[int, ...]) -> int | None:
        if self.cuts is None or len(borders) != self.cuts.borders.shape[1]:
            return None
        found = np.flatnonzero((self.cuts.borders == np.array(borders, dtype=np.int16)).all(axis=1))
        return int(found[0]) if len(found) else None

    def some(self, count: int) -> list[tuple[int, ...]]:
        """The cuts with the least bounds; among equal ones those with the smallest largest stage."""
        if self.cuts is None or not len(self.cuts):
            return []
        near = np.argpartition(self.cuts.bounds, min(len(self.cuts) - 1, 64 * count))[:64 * count + 1]
        widest = np.diff(self.cuts.borders[near].astype(np.int64), axis=1).max(axis=1)
        ranked = near[np.lexsort((near, widest, self.cuts.bounds[near]))]
        return [tuple(map(int, self.cuts.borders[i])) for i in ranked[:count]]

    def carried(self, borders: tuple[int, ...], rows: Sequence[Row]) -> tuple[int, tuple[int, ...]] | None:
        """The time and the best cut for ``rows``, orders of the cut ``borders`` from :func:`orders_of_stages`, among
        the remaining cuts on which they fit. With very many cuts only some are considered."""
        if self.cuts is None or not len(self.cuts):
            return None
        some = self._near(borders, max(4, MOST_CARRIED // sum(map(len, rows))))
        reached: list[tuple[int, int]] = []
        for first in range(0, len(some), _AT_ONCE):
            part = some[first:first + _AT_ONCE]
            variants = self._variants(self.cuts.borders[part])
            fits = np.flatnonzero(fitting(variants, rows))
            if not len(fits):
                continue
            try:
                times = makespans(variants.chosen(fits), rows, self.micro_batches)
            except DeadlockError:
                return None
            best = int(times.argmin())
            reached.append((int(times[best]), int(part[fits[best]])))
        if not reached:
            return None
        makespan, at = min(reached)
        return makespan, tuple(map(int, self.cuts.borders[at]))

    def _near(self, borders: tuple[int, ...], most: int) -> npt.NDArray[np.intp]:
        """Up to ``most`` cuts: with the least bounds, and near ``borders``."""
        assert self.cuts is not None
        if len(self.cuts) <= most:
            return np.arange(len(self.cuts))
        apart = np.abs(self.cuts.borders - np.array(borders, dtype=np.int16)).sum(axis=1, dtype=np.int64)
        near = np.argpartition(apart, most - most // 4)[:most - most // 4]
        return np.union1d(near, np.argpartition(self.cuts.bounds, most // 4)[:most // 4])

    def _variants(self, borders: npt.NDArray[np.int16]) -> Variants:
        return variants_of(self.ground, borders, trains=self.backward != "none")


def _moved(borders: tuple[int, ...]) -> npt.NDArray[np.int16]:
    """The cuts reached from ``borders`` by moving one layer to another stage."""
    moved = np.array([[at + by * (first <= k <= last) for k, at in enumerate(borders)] for by in (-1, 1)
                      for first in range(1, len(borders) - 1) for last in range(first, len(borders) - 1)],
                     dtype=np.int16).reshape(-1, len(borders))
    found: npt.NDArray[np.int16] = moved[(np.diff(moved, axis=1) > 0).all(axis=1)]
    return found


Row = list[tuple[int, int]]


def variants_of(ground: Ground, borders: npt.NDArray[np.int16], *, trains: bool) -> Variants:
    """``borders`` (K x stages + 1) as problems. Block s is the forward of stage s, S + s its gradient, 2 S + s its
    weight gradient; inference has only forwards."""
    layout, count = ground.layout, ground.layout.stages
    first, last = borders[:, :-1].astype(np.int64), borders[:, 1:].astype(np.int64)
    passes = 3 if trains else 1
    columns: dict[str, list[npt.NDArray[np.int64]]] = {"durations": [], "take": [], "change": []}
    for which in range(passes):
        for s, device in enumerate(layout.devices):
            table = ground.tables[ground.kind[device]]
            for name, found in columns.items():
                found.append(getattr(table, name)[which][first[:, s], last[:, s]])
    lags = [ground.lags[s][last[:, s]] for s in range(count - 1)]
    none = np.zeros(len(borders), dtype=np.int64)
    waits, passing = [VariantWait(s, s + 1) for s in range(count - 1)], list(lags)
    if trains:
        waits.append(VariantWait(count - 1, 2 * count - 1))
        waits += [VariantWait(count + s + 1, count + s) for s in range(count - 1)]
        waits += [VariantWait(count + s, 2 * count + s) for s in range(count)]
        passing += [none, *lags, *[none] * count]
    static = np.zeros((len(borders), layout.gpus), dtype=np.int64)
    for s, device in enumerate(layout.devices):
        static[:, device] += ground.tables[ground.kind[device]].static[first[:, s], last[:, s]]
    order = [*range(count), *reversed(range(count, 2 * count)), *range(2 * count, 3 * count)]
    return Variants(
        count,
        layout.devices * passes, tuple(waits), tuple(order[:passes * count]),
        durations=np.stack(columns["durations"], axis=1),
        lags=np.stack(passing, axis=1) if passing else np.zeros((len(borders), 0), dtype=np.int64),
        take=np.stack(columns["take"], axis=1), change=np.stack(columns["change"], axis=1),
        capacity=np.array(ground.capacity, dtype=np.int64) - static)


def orders_of_stages(pipeline: Pipeline, orders: Orders) -> list[Row]:
    """Orders of one cut's blocks as orders of :func:`variants_of`'s. Blocks missing in the cut are inserted where they
    cost it nothing: a weight gradient right after its gradient, a gradient right before its weight gradient."""
    meaning = _numbers(pipeline)
    return [[(block, m) for own, m in row for block in meaning[own]] for row in orders]


def orders_of_blocks(pipeline: Pipeline, orders: Sequence[Sequence[tuple[int, int]]]) -> list[Row]:
    """The inverse: orders of :func:`variants_of`'s blocks as those of one cut's."""
    last = {stage.weight_grad for stage in pipeline.stages}
    own = {numbers[-1 if block in last else 0]: block for block, numbers in _numbers(pipeline).items()}
    return [[(own[block], m) for block, m in row if block in own] for row in orders]


def _numbers(pipeline: Pipeline) -> dict[int, list[int]]:
    """By block of one cut: the corresponding blocks of :func:`variants_of`."""
    count = len(pipeline.stages)
    found: dict[int, list[int]] = {}
    for s, stage in enumerate(pipeline.stages):
        found[stage.forward] = [s]
        if stage.backward is not None:
            found[stage.backward] = [count + s, 2 * count + s]
        elif stage.input_grad is not None and stage.weight_grad is not None:
            found[stage.input_grad], found[stage.weight_grad] = [count + s], [2 * count + s]
        elif stage.weight_grad is not None:
            found[stage.weight_grad] = [count + s, 2 * count + s]
    return found
