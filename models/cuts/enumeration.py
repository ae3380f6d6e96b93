"""All contiguous cuts of the layers into one layout not ruled out by a makespan: enumerated stage by stage, side by
side in numpy.

Lower bounds on a beginning of a cut, valid for every continuation (N micro-batches):

* a device is idle until one micro-batch has passed the forwards of all earlier stages and their transfers; then it runs
  its stages N times; if a gradient is one block, and the device's first stage is stage s, its last gradient is followed
  by the gradients of the stages before s. In inference the forwards of later stages follow: none of them is counted;
* a device keeps a stage's activations of a micro-batch from the start of its forward to the end of its gradient, so at
  least for the forwards and gradients of this and all later layers. These areas, memory times time, of N micro-batches
  fit side by side under the memory left by its stages' weights, and none before the device's first forward;
* the remaining layers are work for the devices within their remaining limits. If GPUs are unequal, a layer's work is
  its least time on any of them, and a GPU's pace the largest ratio of a layer's work to its time there: in a time t it
  does at most its pace times t of work;
* a device holds its stages' weights and, at the last of its forwards, the activations of all of them for one
  micro-batch.

The costs of every possible stage, in arrays: entry ``[first, last]`` is of layers ``first`` to
``last - 1``. Times in nanoseconds, sizes in bytes, for one micro-batch.

The rules are those of :mod:`weft.models.candidates.build`; a missing block of a stage takes no time and no memory here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weft.models.candidates.stages import MemoryRule, Shape, StageCost, Stages, stage_device, static_bytes
from weft.models.layers.costs import LayerCost
from weft.solver.control.clock import checkpoint
from weft.solver.variants.bounds import Numbers

#: Limits on the beginnings of cuts kept at a time, on their numbers together (some 500 MB), and on all numbers
#: processed (some seconds).
MOST, _NUMBERS, _LOOKED_AT = 1_500_000, 60_000_000, 4_000_000_000
#: Areas are floats: bounds from them are reduced by this share.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ground:
    """The data shared by the cuts of one layout. ``tables``: by kind of GPU, given by ``kind``. ``capacity``: bytes of
    each GPU. ``lags``: per stage but the last and border behind it, nanoseconds until the next stage has its input.
    ``ends_whole``: stages have gradients, each one block. ``needed``: entry ``[first, last]`` says whether cuts with
    this stage are wanted; cuts without any such stage are skipped. None: all are wanted."""

    layout: ShapeLayout
    tables: tuple[CutTables, ...]
    kind: tuple[int, ...]
    capacity: tuple[int, ...]
    lags: Numbers
    ends_whole: bool
    needed: npt.NDArray[np.bool_] | None = None

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.tables[0].static) - 1

    @cached_property
    def rest(self) -> Numbers:
        """From each border on, the remaining work: every layer's least time on any GPU."""
        if len(self.tables) == 1:
            return self.tables[0].work[:, -1]
        layers = np.min(self._of_layers, axis=0)
        return np.append(np.cumsum(layers[::-1])[::-1], 0)

    @cached_property
    def paces(self) -> tuple[Fraction, ...]:
        """Per GPU, the most work that it does in a nanosecond, for any layers."""
        least = np.min(self._of_layers, axis=0)
        of_kind = [max((Fraction(int(work), int(time)) for work, time in zip(least, own, strict=True) if time),
                       default=Fraction(1)) for own in self._of_layers]
        return tuple(of_kind[kind] for kind in self.kind)

    @property
    def _of_layers(self) -> Numbers:
        """The time of each layer on each kind of GPU."""
        return np.array([np.diagonal(table.work, 1) for table in self.tables])

    @cached_property
    def lives(self) -> Numbers:
        """For each layer, the least time that a stage beginning there keeps a micro-batch: forwards and gradients from
        there to the last layer and back, for any cuts.

        A stage's gradient takes at least the sum of its layers' input gradients. For unequal GPUs each layer counts
        with its least time; in a split backward with its input gradient only if it has both parts (else its only part
        may be the weight gradient)."""
        if len(self.tables) == 1:
            table = self.tables[0]
            return table.durations[0][:, -1] + table.durations[1][:, -1]
        steps = []
        for table in self.tables:
            forward, gradient, weight = (np.diagonal(durations, 1) for durations in table.durations)
            steps.append(forward + (gradient if self.ends_whole else np.where(weight > 0, gradient, 0)))
        return np.append(np.cumsum(np.min(steps, axis=0)[::-1])[::-1], 0)


@dataclass(frozen=True)
class ListedCuts:
    """``borders`` (K x stages + 1): the first layer of every stage, and the number of layers. ``bounds``: a lower bound
    on each, in ns. ``left_out``: a lower bound on the cuts dropped for lack of room; None if there are none."""

    borders: npt.NDArray[np.int16]
    bounds: Numbers
    left_out: int | None

    def __len__(self) -> int:
        return len(self.borders)


def enumerated(ground: Ground, micro_batches: int, below: int, most: int = MOST) -> ListedCuts:
    """The cuts whose bound is less than ``below`` (ns); with more than ``most`` beginnings, those with the least
    bounds."""
    each, stages = 5 * ground.layout.gpus + ground.layout.stages, ground.layout.stages
    most = max(1, min(most, _NUMBERS // each, _LOOKED_AT // (each * stages * (ground.layers - stages + 1))))
    frontier = _Frontier.empty(ground, micro_batches)
    left_out: int | None = None
    for stage in range(ground.layout.stages):
        parts = []
        for length in range(1, ground.layers - ground.layout.stages + 2):
            checkpoint()
            parts.append(frontier.extended(stage, length, below))
        frontier = _Frontier.joined(parts).wanted()
        if len(frontier.bounds) > most:
            ranked = np.argpartition(frontier.bounds, most)
            dropped = int(frontier.bounds[ranked[most:]].min())
            left_out = dropped if left_out is None else min(left_out, dropped)
            frontier = frontier.chosen(np.sort(ranked[:most]))
    return ListedCuts(frontier.borders, frontier.bounds, left_out)


@dataclass
class _Frontier:
    """Beginnings of cuts, one a row, all up to the same stage."""

    ground: Ground
    micro_batches: int
    borders: npt.NDArray[np.int16]
    head: Numbers  # of the next stage's first forward
    tail: Numbers  # after the next stage's last gradient
    floor: Numbers  # per device: time before and after its work
    load: Numbers  # per device, for one micro-batch
    held: Numbers  # per device: of weights and one micro-batch
    static: Numbers  # per device: of weights
    area: npt.NDArray[np.float64]  # per device, bytes x ns of one micro-batch
    bounds: Numbers

    @classmethod
    def empty(cls, ground: Ground, micro_batches: int) -> _Frontier:
        gpus = ground.layout.gpus
        one, none = np.zeros(1, dtype=np.int64), np.zeros((1, gpus), dtype=np.int64)
        return cls(ground, micro_batches, np.zeros((1, 1), dtype=np.int16), one, one, none, none, none, none,
                   none.astype(np.float64), one)

    @classmethod
    def joined(cls, parts: list[_Frontier]) -> _Frontier:
        first = parts[0]
        return cls(first.ground, first.micro_batches,
                   *(np.concatenate([getattr(part, name) for part in parts])
                     for name in ("borders", "head", "tail", "floor", "load", "held", "static", "area", "bounds")))

    def chosen(self, which: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> _Frontier:
        return _Frontier(self.ground, self.micro_batches, self.borders[which], self.head[which], self.tail[which],
                         self.floor[which], self.load[which], self.held[which], self.static[which], self.area[which],
                         self.bounds[which])

    def wanted(self) -> _Frontier:
        """The beginnings that have a needed stage, or may still get one."""
        needed = self.ground.needed
        if needed is None:
            return self
        borders = self.borders.astype(np.int64)
        has = needed[borders[:, :-1], borders[:, 1:]].any(axis=1)
        later = np.array([needed[first:].any() for first in range(len(needed))])
        return self.chosen(has | later[borders[:, -1]])

    def extended(self, stage: int, length: int, below: int) -> _Frontier:
        """The beginnings extended by a stage of ``length`` layers whose bound stays below ``below``."""
        ground, layers = self.ground, self.ground.layers
        behind = ground.layout.stages - 1 - stage
        start = self.borders[:, -1].astype(np.int64)
        end = start + length
        possible = np.flatnonzero(end <= layers - behind if behind else end == layers)
        own, start, end = self.chosen(possible), start[possible], end[possible]
        device = ground.layout.devices[stage]
        table = ground.tables[ground.kind[device]]
        if device not in ground.layout.devices[:stage]:
            own.floor[:, device] = own.head + (own.tail if ground.ends_whole else 0)
        own.load[:, device] += table.work[start, end]
        own.held[:, device] += table.static[start, end] + table.kept[start, end]
        own.static[:, device] += table.static[start, end]
        own.area[:, device] += table.kept[start, end].astype(np.float64) * ground.lives[start]
        passing = ground.lags[stage, end] if behind else 0
        own.head = own.head + table.durations[0][start, end] + passing
        own.tail = own.tail + table.durations[1][start, end] + passing
        own.borders = np.concatenate([own.borders, end[:, None].astype(np.int16)], axis=1)
        room = np.maximum(ground.capacity[device] - own.static[:, device], 1)
        full = self.micro_batches * (1 - _ROUNDING) * own.area[:, device] / room
        busy = np.maximum(self.micro_batches * own.load[:, device], np.minimum(full, 2.0 ** 62).astype(np.int64))
        own.bounds = np.maximum(own.bounds, own.floor[:, device] + busy)
        fits = (own.bounds < below) & (own.held[:, device] <= ground.capacity[device])
        if behind:
            fits &= own._can_end(stage, end, below)
        return own.chosen(fits)

    def _can_end(self, stage: int, end: npt.NDArray[np.int64], below: int) -> npt.NDArray[np.bool_]:
        """Whether the devices can do the remaining work."""
        ground = self.ground
        devices = ground.layout.devices
        room = np.zeros(len(end), dtype=np.int64)
        for device in set(devices[stage + 1:]):
            floor = self.floor[:, device] if device in devices[:stage + 1] else self.head
            time = np.maximum((below - 1 - floor) // self.micro_batches - self.load[:, device], 0)
            pace = ground.paces[device]
            # Rounded up by more than the floating-point error: overestimated room rules nothing out.
            room += time if pace == 1 else np.ceil(time * float(pace) * (1 + 1e-12)).astype(np.int64) + 1
        return np.asarray(ground.rest[end] <= room)


@dataclass(frozen=True, slots=True)
class ShapeLayout:
    """``shape`` with ``chunks`` stages on each of ``gpus`` GPUs."""

    shape: Shape
    chunks: int
    gpus: int

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.chunks * self.gpus

    @property
    def devices(self) -> tuple[int, ...]:
        """The GPU of each stage."""
        return stage_device(self.shape, self.gpus, self.chunks)


def layouts(shapes: Collection[str], gpus: int, most_chunks: int, layers: int) -> list[ShapeLayout]:
    """The layouts of ``shapes`` with up to ``most_chunks`` stages a GPU for which there are enough ``layers``, fewest
    stages first; on one GPU only the chain."""
    found = [ShapeLayout("chain", 1, gpus)] if "chain" in shapes and layers >= gpus else []
    for chunks in range(2, most_chunks + 1 if gpus > 1 else 0):
        turning: Shape = "v" if chunks == 2 else "wave"
        found += [ShapeLayout(shape, chunks, gpus) for shape in (turning, "loop") if shape in shapes]
    return [layout for layout in found if layout.stages <= layers]


@dataclass(frozen=True)
class CutTables:
    """Three blocks a stage: forward, gradient (a full backward, or of the input) and weight gradient; each has a
    duration, the memory it ``take``s at its start and the net change of the level at its end. ``static``: the stage's
    static memory. ``whole``: whether the stage's gradient is one block, without a third block."""

    durations: tuple[Numbers, Numbers, Numbers]
    take: tuple[Numbers, Numbers, Numbers]
    change: tuple[Numbers, Numbers, Numbers]
    static: Numbers

    @classmethod
    def of(cls, layers: Sequence[LayerCost], rule: MemoryRule) -> CutTables:
        """The tables of ``layers``."""
        count = len(layers) + 1
        stages = Stages(layers)
        rows = np.zeros((10, count, count), dtype=np.int64)
        for first in range(count - 1):
            for last in range(first + 1, count):
                rows[:, first, last] = _stage(stages.stage(first, last), rule)
        return cls((rows[0], rows[1], rows[2]), (rows[3], rows[4], rows[5]), (rows[6], rows[7], rows[8]), rows[9])

    @property
    def work(self) -> Numbers:
        """The total work of a stage."""
        return sum(self.durations[1:], self.durations[0])

    @property
    def kept(self) -> Numbers:
        """The activations of a stage for a micro-batch between its forward and its gradient."""
        return self.change[0]


def _stage(stage: StageCost, rule: MemoryRule) -> tuple[int, ...]:
    static = static_bytes([stage], rule.bytes_per_parameter)
    if rule.backward == "none":
        return stage.forward, 0, 0, stage.working_set, 0, 0, 0, 0, 0, static
    kept, forward = stage.activation, (stage.forward, stage.activation + stage.workspace_forward, stage.activation)
    if rule.backward == "full" or not stage.weight_grad:
        gradient = (stage.backward, stage.workspace_backward, -kept)
        weight = (0, 0, 0)
    elif not stage.input_grad:
        alone = (stage.weight_grad, stage.workspace_after_forward, -kept)
        gradient, weight = ((0, 0, 0), alone) if stage.first == 0 else (alone, (0, 0, 0))
    else:
        more = stage.held - kept
        gradient = (stage.input_grad, max(more, 0) + stage.workspace_backward, more)
        weight = (stage.weight_grad, stage.workspace_weight_grad, -stage.held)
    columns = zip(forward, gradient, weight, strict=True)
    return *(number for column in columns for number in column), static
