"""Lower bounds on the makespans of many variants of a pipeline at once.

For each operation of the first micro-batches its *head*, the least time before it, and for the last ones its *tail*,
the least time behind it (:mod:`weft.solver.bounds.heads` has the arguments, here for all variants side by side):

* what it waits for, with the transfer; the same block of the micro-batch before;
* what memory makes precede it. Let the forward of stage x of micro-batch m start on a device with capacity C, stages
  y' <= x on it, and let the gradient of stage y <= x of micro-batch m - k not have ended. Blocks run micro-batches in
  turn and gradients pass the stages backwards, so neither have the gradients of stages y' <= y of micro-batches m - k
  and later; all forwards of these up to m have started. They hold ``(k + 1) x kept`` each (stage x itself k, beside
  what its forward takes), everything else 0 or more: where this exceeds C, the gradient precedes the forward. With a
  weight gradient in its place stage y holds ``k + 1`` times what it keeps before its gradient, or behind it where that
  is less: some of these gradients may have run;
* all that must precede it on its own device, one after the other, from the least head e of any of it on: what has
  heads of e or more takes up its length.

Memory bounds the makespan by itself, too: what a stage keeps of a micro-batch it keeps at least for the longest path
from its forward to the end of its gradient. These areas of all micro-batches, memory times time, lie side by side under
the device's capacity, between the first head of its forwards and the last tail of its gradients.

The bound: of a device's operations only those with heads below e can run before e, only those with tails below t in
the last t; all micro-batches' work lies between, so makespan >= (e - work of the former) + N x load + (t - work of the
latter), for the best e and t.

Pipelines of one graph whose numbers differ, side by side in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checkpoint

_NEVER = 1 << 40
#: Areas are floats: what they prove is that much less.
_ROUNDING = 1e-9
#: Heads and tails of no more micro-batches than this are looked at.
_SHOWN = 16


def makespan_bounds(variants: Variants, micro_batches: int, *, crowded: int = _SHOWN) -> Numbers:
    """A lower bound on the makespan of each variant, in ticks; the one-machine argument is used for the first
    ``crowded`` micro-batches."""
    order = Precedence(variants)
    shown = min(micro_batches, _SHOWN)
    head, tail = (_heads(order, shown, crowded, mirrored=mirrored) for mirrored in (False, True))
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
    return np.asarray(np.maximum(bounds, _areas(variants, head, tail, micro_batches)), dtype=np.int64)


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
        """By gradient (or weight gradient) and forward: the least distance at which memory makes one precede the
        other."""
        found: dict[tuple[int, int], Numbers] = {}
        variants = self.variants
        count = variants.stages
        if len(variants.device) < 2 * count:
            return found
        for device in range(variants.devices):
            stages = [s for s in range(count) if variants.device[s] == device]
            for place, x in enumerate(stages):
                room = variants.capacity[:, device] - variants.take[:, x]
                each = np.zeros(len(variants), dtype=np.int64)
                for y in stages[:place + 1]:
                    each = each + variants.change[:, y]
                    once = each - (variants.change[:, x] if x == y else 0)  # of distance 0
                    found[count + y, x] = _least(room - once, each)
                    if len(variants.device) > 2 * count:
                        back = np.minimum(-variants.change[:, 2 * count + y], variants.change[:, y])
                        found[2 * count + y, x] = _least(room - (0 if x == y else back), back)
        return found

    @cached_property
    def on_device(self) -> dict[int, list[tuple[int, Numbers]]]:
        """Per block: what precedes it on its own device, and from which distance on."""
        variants, paths = self.variants, self.paths
        found: dict[int, list[tuple[int, Numbers]]] = {}
        for device in range(variants.devices):
            own = variants.blocks_on(device)
            for b in own:
                entries = []
                for i in own:
                    if i == b:
                        least = np.ones(len(variants), dtype=np.int64)
                    elif paths[i, b]:
                        least = np.zeros(len(variants), dtype=np.int64)
                    else:
                        least = np.full(len(variants), _NEVER, dtype=np.int64)
                        for (source, target), distance in self.memory.items():
                            if variants.device[source] == device and paths[i, source] and paths[target, b]:
                                least = np.minimum(least, distance)
                        if least.min() >= _NEVER:
                            continue
                    entries.append((i, least))
                found[b] = entries
        return found

    def after(self) -> dict[int, list[tuple[int, Numbers]]]:
        """The same backwards: per block what follows it on its device."""
        found: dict[int, list[tuple[int, Numbers]]] = {b: [] for b in self.on_device}
        for b, entries in self.on_device.items():
            for i, least in entries:
                found[i].append((b, least))
        return found


def _least(room: Numbers, each: Numbers) -> Numbers:
    """The least k >= 0 with k x each > room; never where nothing is held."""
    return np.where(each > 0, np.maximum(room, -1) // np.maximum(each, 1) + 1, _NEVER)


def _heads(order: Precedence, shown: int, crowded: int, *, mirrored: bool) -> Numbers:
    """Blocks x micro-batches x K: heads; mirrored: tails, of the last micro-batch first."""
    variants = order.variants
    durations = np.ascontiguousarray(variants.durations.T)
    into: list[list[tuple[int, Numbers]]] = [[] for _ in variants.device]
    for number, wait in enumerate(variants.waits):
        source, target = (wait.target, wait.source) if mirrored else (wait.source, wait.target)
        into[target].append((source, variants.lags[:, number]))
    far: list[list[tuple[int, Numbers]]] = [[] for _ in variants.device]
    for (source, target), distance in order.memory.items():
        far[source if mirrored else target].append((target if mirrored else source, distance))
    before = order.after() if mirrored else order.on_device
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
            if m < crowded:
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
    at = np.concatenate([head[b] for b in own]).T
    left = np.concatenate([tail[b, ::-1] for b in own]).T
    length = np.concatenate([np.broadcast_to(variants.durations[:, b], head[b].shape) for b in own]).T
    ranked = np.argsort(-left, axis=1)
    at, left, length = (np.take_along_axis(numbers, ranked, axis=1) for numbers in (at, left, length))
    best = np.zeros(len(variants), dtype=np.int64)
    for column in range(at.shape[1]):
        first = at[:, column, None]
        done = np.cumsum(np.where(at >= first, length, 0), axis=1)
        best = np.maximum(best, np.where(done > 0, first + left + done, 0).max(axis=1))
    return best


def _areas(variants: Variants, head: Numbers, tail: Numbers, micro_batches: int) -> Numbers:
    """The bound by memory times time; 0 where the variants do not train."""
    count = variants.stages
    best = np.zeros(len(variants), dtype=np.int64)
    if len(variants.device) == count:
        return best
    # From the start of each stage's forward to the end of its gradient: there and back.
    step = [variants.durations[:, s] + variants.durations[:, count + s] for s in range(count)]
    life = np.cumsum(np.stack(step[::-1]), axis=0)[::-1]
    for device in range(variants.devices):
        stages = [s for s in range(count) if variants.device[s] == device]
        area = sum((variants.change[:, s].astype(np.float64) * life[s] for s in stages),
                   np.zeros(len(variants)))
        room = np.maximum(variants.capacity[:, device], 1)
        full = np.minimum(micro_batches * area / room * (1 - _ROUNDING), 2.0 ** 62).astype(np.int64)
        gradients = [count + s for s in stages] + [2 * count + s for s in stages if len(variants.device) > 2 * count]
        best = np.maximum(best, full + head[stages, 0].min(axis=0) + tail[gradients, 0].min(axis=0))
    return best


def _busy(variants: Variants, head: Numbers, tail: Numbers, own: list[int], micro_batches: int) -> Numbers:
    """The work of a device between what it has to idle at either end, where some work is left between the ends."""
    work = micro_batches * variants.durations[:, own].sum(axis=1)
    (first, begun), (last, ended) = (_idle(variants, times, own) for times in (head, tail))
    return np.asarray(np.where(begun + ended < work, first + last, np.maximum(first, last)) + work)


def _idle(variants: Variants, times: Numbers, own: list[int]) -> tuple[Numbers, Numbers]:
    """How long a device has to idle at one end, and how much it can work there meanwhile."""
    at = np.concatenate([times[b] for b in own]).T
    length = np.concatenate([np.broadcast_to(variants.durations[:, b], times[b].shape) for b in own]).T
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
