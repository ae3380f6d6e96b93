"""Lower bounds on the makespans of many variants of a pipeline at once.

For each operation of the first micro-batches its *head*, the least time before it, and for the last ones its *tail*,
the least time behind it (:mod:`weft.solver.bounds.heads` has the arguments, here for all variants side by side):

* what it waits for, with the transfer; the same block of the micro-batch before;
* what memory makes precede it. Suppose that on a device with capacity C the forward of its stage x of micro-batch m
  precedes the gradient of its stage y of micro-batch m - k. Blocks run micro-batches in turn and gradients pass the
  stages backwards, so until that gradient none has run of stages y' <= y of micro-batches m - k and later; and when
  that forward starts, all of stages x' <= x up to m have started. So stages up to the lesser of x and y hold k times
  what they keep of a micro-batch, and what else is held for certain is

  - of stages before x, when that forward starts, m itself, beside what it takes (y <= x);
  - of stages up to y, m - k, when the later of the forwards of x of m and of y of m - k starts (y > x);
  - of stages up to y, one more, when the gradient starts, beside what it takes.

  Everything else holds 0 or more: where one of these exceeds C, the gradient precedes the forward. Where the second
  does with the forward of y as the later one, that precedes the forward of x. With a weight gradient in place of the
  gradient (y <= x) stage y holds k times what it keeps before its gradient, or behind it where that is less: some of
  these gradients may have run;
* what these say together: the distances of what precedes what add up along paths;
* all that must precede it on its own device, one after the other, from the least head e of any of it on: what has
  heads of e or more takes up its length.

Memory bounds the makespan by itself, too. When a gradient may start at the earliest, at e, its device has run no more
of gradients than their heads leave, and only forwards that found room: what has started keeps no more than C and what
gradients that may have ended by e have given back. A micro-batch's forwards run in order, so a unit of memory holds no
more forward time than the best beginning of the device's stages does (what keeps nothing is added). Hence makespan >=
e - all that + N x load.

The bound: of a device's operations only those with heads below e can run before e, only those with tails below t in
the last t; all micro-batches' work lies between, so makespan >= (e - work of the former) + N x load + (t - work of the
latter), for the best e and t.

Pipelines of one graph whose numbers differ, side by side in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checkpoint

#: Distances that nothing has, and that no sum with another is too large for 16 bits.
_NEVER, _FAR = 1 << 40, 1 << 12
#: Paces are floats: what they prove is that much less.
_ROUNDING = 1e-9
#: Heads and tails of no more micro-batches than this are looked at.
_SHOWN = 16


def quick_bounds(variants: Variants, micro_batches: int, *, first: bool = False) -> Numbers:
    """What :func:`makespan_bounds` finds without the one-machine arguments, in a tenth of its time; ``first``: only by
    the first gradient of each device, in a hundredth."""
    head = _heads(Precedence(variants), 1 if first else min(micro_batches, _SHOWN), alone=True, mirrored=False)
    return _filled(variants, head, micro_batches)


def makespan_bounds(variants: Variants, micro_batches: int) -> Numbers:
    """A lower bound on the makespan of each variant, in ticks."""
    order = Precedence(variants)
    shown = min(micro_batches, _SHOWN)
    head, tail = (_heads(order, shown, mirrored=mirrored) for mirrored in (False, True))
    whole = shown == micro_batches
    bounds = (head + variants.durations.T[:, None] + tail[:, ::-1]).max(axis=(0, 1)) if whole else (
        head[:, 0] + variants.durations.T + tail[:, -1]).max(axis=0)
    for device in range(variants.devices):
        own = [block for block in variants.blocks_on(device) if variants.durations[:, block].any()]
        if not own:
            continue
        checkpoint()
        if whole:
            bounds = np.maximum(bounds, _one_machine(variants, head, tail, own))
        else:
            bounds = np.maximum(bounds, _busy(variants, head, tail, own, micro_batches))
    return np.asarray(np.maximum(bounds, _filled(variants, head, micro_batches)), dtype=np.int64)


@dataclass(frozen=True)
class Precedence:
    """What precedes what in every schedule of each variant: ``distance[i][b]`` (K numbers, or one for all) is the least
    d for which block i of micro-batch m - d precedes block b of micro-batch m, for i and b on one device."""

    variants: Variants

    @cached_property
    def paths(self) -> npt.NDArray[np.bool_]:
        """Whether block i precedes block b within a micro-batch."""
        count = len(self.variants.device)
        reach = np.eye(count, dtype=np.bool_)
        into: list[list[int]] = [[] for _ in range(count)]
        for wait in self.variants.waits:
            into[wait.target].append(wait.source)
        for block in self.variants.order:
            for source in into[block]:
                reach[:, block] |= reach[:, source]
        return reach

    @cached_property
    def memory(self) -> dict[tuple[int, int], Numbers]:
        """By block and forward: the least distance at which memory makes the one precede the other."""
        found: dict[tuple[int, int], Numbers] = {}
        variants, count = self.variants, self.variants.stages
        for device in range(variants.devices if len(variants.device) > count else 0):
            stages = [s for s in range(count) if variants.device[s] == device]
            kept, room = variants.change[:, stages], variants.capacity[:, device]
            up_to = dict(zip(stages, np.cumsum(kept, axis=1).T, strict=True))
            for x, y in product(stages, stages):
                others, each = up_to[x] - variants.change[:, x], up_to[min(x, y)]
                starts = others + variants.take[:, x]
                if y > x:
                    before = up_to[y] - variants.change[:, y]
                    found[y, x] = _least(room - before - variants.take[:, y], each)
                    starts = before - variants.change[:, x] + np.minimum(
                        variants.take[:, x] + variants.change[:, y], variants.change[:, x] + variants.take[:, y])
                elif len(variants.device) > 2 * count:
                    back = np.minimum(-variants.change[:, 2 * count + y], variants.change[:, y])
                    found[2 * count + y, x] = _least(room - starts, back)
                starts = np.maximum(starts, up_to[y] + variants.take[:, count + y])
                found[count + y, x] = _least(room - starts, each)
        return found

    @cached_property
    def distance(self) -> npt.NDArray[np.int16]:
        """Blocks x blocks x K: the least d for which the first of micro-batch m - d precedes the second of m."""
        least = np.where(self.paths, 0, _FAR).astype(np.int16)[:, :, None].repeat(len(self.variants), axis=2)
        for (source, target), far in sorted(self.memory.items(), key=lambda entry: int(entry[1].sum())):
            arc = np.minimum(far, _FAR).astype(np.int16)
            if (arc < np.minimum(least[source, target], _SHOWN)).any():
                np.minimum(least, least[:, source][:, None] + (least[target] + arc), out=least)
        return least

    def on_device(self, block: int, *, mirrored: bool) -> list[tuple[int, Numbers]]:
        """What precedes ``block`` on its own device, and from which distance on; mirrored: what follows it."""
        far = {i: np.maximum(self.distance[(block, i) if mirrored else (i, block)], i == block).astype(np.int64)
               for i in self.variants.blocks_on(self.variants.device[block])}
        return [(i, least) for i, least in far.items() if least.min() < _FAR]


def _least(room: Numbers, each: Numbers) -> Numbers:
    """The least k >= 0 with k x each > room; never where nothing is held."""
    return np.where(each > 0, np.maximum(room, -1) // np.maximum(each, 1) + 1, _NEVER)


def _heads(order: Precedence, shown: int, *, mirrored: bool, alone: bool = False) -> Numbers:
    """Blocks x micro-batches x K: heads; mirrored: tails, of the last micro-batch first; ``alone``: by paths only."""
    variants = order.variants
    durations = np.ascontiguousarray(variants.durations.T)
    into: list[list[tuple[int, Numbers]]] = [[] for _ in variants.device]
    for number, wait in enumerate(variants.waits):
        source, target = (wait.target, wait.source) if mirrored else (wait.source, wait.target)
        into[target].append((source, variants.lags[:, number]))
    far: list[list[tuple[int, Numbers]]] = [[] for _ in variants.device]
    for (source, target), distance in order.memory.items():
        far[source if mirrored else target].append((target if mirrored else source, distance))
    before = {} if alone else {b: order.on_device(b, mirrored=mirrored) for b in variants.order}
    head = np.zeros((len(variants.device), shown, len(variants)), dtype=np.int64)
    every = np.arange(len(variants))
    for m in range(shown):
        for block in reversed(variants.order) if mirrored else variants.order:
            checkpoint()
            own = head[block, m]
            for source, lag in into[block]:
                np.maximum(own, head[source, m] + durations[source] + lag, out=own)
            if m:
                np.maximum(own, head[block, m - 1] + durations[block], out=own)
            for source, distance in far[block]:
                reached = np.flatnonzero(distance <= m)
                if len(reached):
                    earlier = head[source, m - distance[reached], every[reached]] + durations[source, reached]
                    own[reached] = np.maximum(own[reached], earlier)
            if before:
                np.maximum(own, _all_run(head, durations, before[block], m), out=own)
    return head


def _all_run(head: Numbers, durations: Numbers, known: list[tuple[int, Numbers]], m: int) -> Numbers:
    """When a device can have run all that ``known`` says."""
    starts, lengths = [], []
    for i, distance in known:
        counts = m - distance + 1
        most = int(counts.max())
        for k in range(most):
            starts.append(head[i, k])
            lengths.append(np.where(counts > k, durations[i], 0))
    if len(starts) < 2:
        return np.zeros(head.shape[2], dtype=np.int64)
    at, length = np.stack(starts, axis=1), np.stack(lengths, axis=1)
    ranked = np.argsort(-at, axis=1)
    at, length = np.take_along_axis(at, ranked, axis=1), np.take_along_axis(length, ranked, axis=1)
    done = at + np.cumsum(length, axis=1)
    return np.asarray(np.where(np.cumsum(length, axis=1) > 0, done, 0).max(axis=1), dtype=np.int64)


def _one_machine(variants: Variants, head: Numbers, tail: Numbers, own: list[int]) -> Numbers:
    """The least makespan of one device for the heads and tails of all its operations: the largest, over heads r and
    tails q, of r + q + the work that has heads of r and tails of q at least."""
    at, length = _by_time(variants, head, own)
    left, _ = _by_time(variants, tail[:, ::-1], own)
    ranked = np.argsort(-left, axis=1)
    at, left, length = (np.take_along_axis(numbers, ranked, axis=1) for numbers in (at, left, length))
    best = np.zeros(len(variants), dtype=np.int64)
    for column in range(at.shape[1]):
        first = at[:, column, None]
        done = np.cumsum(np.where(at >= first, length, 0), axis=1)
        best = np.maximum(best, np.where(done > 0, first + left + done, 0).max(axis=1))
    return best


def _filled(variants: Variants, head: Numbers, micro_batches: int) -> Numbers:
    """The bound by what a device can have run when a gradient may start; 0 where the variants do not train."""
    count = variants.stages
    best = np.zeros(len(variants), dtype=np.int64)
    for device in range(variants.devices if len(variants.device) > count else 0):
        own = variants.blocks_on(device)
        stages, gradients = [b for b in own if b < count], [b for b in own if b >= count]
        kept = np.minimum(variants.change, variants.take)[:, stages]
        lasts = variants.durations[:, stages]
        free = micro_batches * np.where(kept > 0, 0, lasts).sum(axis=1)
        pace = (np.cumsum(np.where(kept > 0, lasts, 0), axis=1) / np.maximum(np.cumsum(kept, axis=1), 1)).max(axis=1)
        (at, length), (begins, runs) = (_by_time(variants, head, blocks) for blocks in (gradients, stages))
        back = np.concatenate([np.broadcast_to(np.maximum(-variants.change[:, b], 0), head[b].shape)
                               for b in gradients]).T
        shown, until = (head[blocks, -1].min(axis=0) if head.shape[1] < micro_batches else np.int64(_NEVER)
                        for blocks in (stages, gradients))  # later ones of what is not looked at may run before
        for number in range(len(stages) * head.shape[1]):
            checkpoint()
            now = at[:, number, None]
            room = variants.capacity[:, device] + np.where(at + length <= now, back, 0).sum(axis=1)
            forwards = (room * pace * (1 + _ROUNDING)).astype(np.int64) + 1 + free
            forwards = np.where(now[:, 0] > shown, forwards, np.minimum(
                forwards, np.clip(now - begins, 0, runs).sum(axis=1)))
            idle = now[:, 0] - forwards - np.clip(now - at, 0, length).sum(axis=1)
            best = np.maximum(best, np.where(now[:, 0] <= until, idle, 0) + micro_batches
                              * variants.durations[:, own].sum(axis=1))
    return best


def _by_time(variants: Variants, times: Numbers, blocks: list[int]) -> tuple[Numbers, Numbers]:
    """K x operations of ``blocks``: when they may start, and how long they take."""
    return (np.concatenate([times[b] for b in blocks]).T,
            np.concatenate([np.broadcast_to(variants.durations[:, b], times[b].shape) for b in blocks]).T)


def _busy(variants: Variants, head: Numbers, tail: Numbers, own: list[int], micro_batches: int) -> Numbers:
    """The work of a device between what it has to idle at either end, where some work is left between the ends."""
    work = micro_batches * variants.durations[:, own].sum(axis=1)
    (first, begun), (last, ended) = (_idle(variants, times, own) for times in (head, tail))
    return np.asarray(np.where(begun + ended < work, first + last, np.maximum(first, last)) + work)


def _idle(variants: Variants, times: Numbers, own: list[int]) -> tuple[Numbers, Numbers]:
    """How long a device has to idle at one end, and how much it can work there meanwhile."""
    at, length = _by_time(variants, times, own)
    ranked = np.argsort(at, axis=1)
    at, length = np.take_along_axis(at, ranked, axis=1), np.take_along_axis(length, ranked, axis=1)
    before = np.cumsum(length, axis=1) - length
    # What comes later than the last that is shown of any block may run before it. What takes no time is no operation.
    until = np.min([times[b, -1] for b in own], axis=0)
    idle = np.where((at <= until[:, None]) & (length > 0), at - before, 0)
    best = idle.argmax(axis=1)
    every = np.arange(len(idle))
    return idle[every, best], np.where(idle[every, best] > 0, before[every, best], 0)


#: Variants x blocks (waits, devices): ticks of time or units of memory.
Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class VariantWait:
    """Block ``target`` waits for block ``source`` of its own micro-batch."""

    source: int
    target: int


@dataclass(frozen=True)
class Variants:
    """K pipelines with the same blocks on the same devices, which wait for each other in the same way.

    Of S ``stages``, block s is the forward of stage s; where they train, block S + s is its gradient (a full backward,
    or of the input) and 2 S + s its weight gradient. ``device``: of each block. ``order``: the blocks of one
    micro-batch, each after those it waits for. ``durations`` (K x blocks) may be 0, for a block that a variant does not
    have. ``lags`` (K x waits) is the transfer of each wait. ``take`` is what a block takes when it starts (workspace
    included), ``change`` by how much it has changed the level once it has ended (both K x blocks), ``capacity`` (K x
    devices) what a device has for them.
    """

    stages: int
    device: tuple[int, ...]
    waits: tuple[VariantWait, ...]
    order: tuple[int, ...]
    durations: Numbers
    lags: Numbers
    take: Numbers
    change: Numbers
    capacity: Numbers

    def __len__(self) -> int:
        return len(self.durations)

    @property
    def devices(self) -> int:
        """How many there are."""
        return int(self.capacity.shape[1])

    def blocks_on(self, device: int) -> list[int]:
        """The blocks that run on ``device``."""
        return [block for block, own in enumerate(self.device) if own == device]

    def chosen(self, which: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | Sequence[int] | slice) -> Variants:
        """Some of them."""
        return replace(self, durations=self.durations[which], lags=self.lags[which], take=self.take[which],
                       change=self.change[which], capacity=self.capacity[which])
