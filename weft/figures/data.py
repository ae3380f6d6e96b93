"""The drawn data as plain rows: boxes, memory steps, phases.

Positions are those of a :class:`~weft.figures.axis.TimeAxis`, heights are pixels from the top of the picture.

The sheet of a picture: the contents of every layer, gathered panel by panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from weft.figures.axis import TimeAxis
from weft.figures.style import INK, chunk_of_block, kind_label, text_width
from weft.solver.baselines import BASELINES
from weft.solver.names import Names
from weft.solver.problem import Number
from weft.solver.schedule import Operation, Schedule
from weft.text.units import TEXT, Unit, name_text

#: The data of one mark of a picture: Vega's fields by name.
Record: TypeAlias = dict[str, Any]

#: Below this many pixels a box has no outline: it would cover the box.
OUTLINED = 3.0

#: Font sizes of micro-batch numbers, and the shares of them that must fit (see :func:`numbers`).
NUMBER_SIZES = (10.0, 9.0, 8.0, 7.0)
NEARLY_ALL, TOO_FEW = 0.9, 0.4


@dataclass(frozen=True)
class MeasuredRun:
    """One run of a schedule: per device, the operations that ran there, the first one of all starting at 0."""

    rows: tuple[tuple[Operation, ...], ...]

    @property
    def end(self) -> float:
        """The end of the last operation."""
        return max((operation.end for row in self.rows for operation in row), default=0.0)


@dataclass(frozen=True)
class Subject:
    """A schedule and the additional data of its picture. Memory in the problem's unit; ``None`` = unlimited."""

    schedule: Schedule
    static: tuple[Number, ...]
    caps: tuple[Number | None, ...]

    @cached_property
    def names(self) -> Names:
        """The names of its operations."""
        return Names(self.schedule)

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Per block, its chunk of the model on its devices; with several jobs, blocks are distinguished by job, and all
        are chunk 0."""
        problem = self.schedule.problem
        return (0,) * len(problem.blocks) if len(self.names.jobs) > 1 else chunk_of_block(problem, self.names.origin)

    @cached_property
    def own(self) -> tuple[int, ...]:
        """The devices other than lanes."""
        return tuple(d for d, device in enumerate(self.schedule.problem.devices) if device.lane_of is None)

    @cached_property
    def peaks(self) -> tuple[Number, ...]:
        """Per device, the highest level including static memory."""
        return tuple(base + peak for base, peak in zip(self.static, self.schedule.peak_memory, strict=True))

    def kind(self, block: int) -> str:
        """Its colour class."""
        return kind_label(self.schedule.problem.blocks[block].kind, self.chunks[block], self.names.job(block))

    @property
    def name(self) -> str:
        """The schedule's origin; baselines have the names given by their authors."""
        name = str(self.schedule.solver.get("name", "schedule"))
        return BASELINES[name].title if name in BASELINES else name_text(name)


@dataclass(frozen=True, slots=True)
class DeviceBand:
    """The vertical extent of the boxes of a device, which may be a lane of another: ``top`` and ``bottom`` in
    pixels."""

    top: float
    bottom: float


def subject(schedule: Schedule) -> Subject:
    """Read the memory entries of ``schedule``. Raises ``ValueError`` if they contradict its problem."""
    devices = schedule.problem.devices
    capacities = [device.memory for device in devices]
    static = _per_device(schedule.solver.get("static_memory", [device.static for device in devices]),
                         "static_memory", len(devices))
    total = schedule.solver.get("gpu_memory")
    if total is not None:
        own = total if isinstance(total, list) and len(total) == len(devices) else [total] * len(devices)
        known = _per_device([0 if has is None else has for has in own], "gpu_memory", len(devices))
        return Subject(schedule, static, tuple(None if has is None else number
                                               for has, number in zip(own, known, strict=True)))
    caps = (None if capacity is None else base + capacity for base, capacity in zip(static, capacities, strict=True))
    return Subject(schedule, static, tuple(caps))


def _per_device(value: Any, label: str, devices: int) -> tuple[Number, ...]:
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value] * devices
    if len(numbers) != devices or not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in numbers):
        raise ValueError(f"solver: {label} is {value!r}, it must be a number for each of the {devices} devices")
    return tuple(numbers)


# -- measured runs -----------------------------------------------------------------------------------------------


def read_measured(run: Any, schedule: Schedule) -> MeasuredRun:
    """The measured run of ``schedule``; see :func:`weft.figures.drawing.chart`.

    Raises ``ValueError`` naming the entry."""
    problem, rounds = schedule.problem, schedule.rounds
    known = problem.index if rounds is None else rounds.origin.index
    pools = [d for d, device in enumerate(problem.devices) if device.lane_of is None]
    rows: list[list[Operation]] = [[] for _ in problem.devices]
    scale = 1 / getattr(run, "seconds_per_unit", 1.0)
    for i, entry in enumerate(getattr(run, "operations", run)):
        try:
            block, micro_batch, rank, start, end = _fields(entry)
            named = known[block] if isinstance(block, str) else int(block)
            index, number = (named, int(micro_batch)) if rounds is None else rounds.joined(named, int(micro_batch))
            if rank not in range(len(pools)):
                raise ValueError(f"rank {rank} of {len(pools)}")
            pooled = [d for d in problem.blocks[index].devices if problem.pool_of[d] == pools[rank]]
            for device in pooled or [pools[rank]]:
                rows[device].append(Operation(index, number, float(start) * scale, float(end) * scale))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"measured[{i}]: is {entry!r}, it must hold a block and a rank of the schedule, a "
                             f"micro-batch, a start and an end ({error})") from None
    begin = min((operation.start for row in rows for operation in row), default=0.0)
    return MeasuredRun(tuple(
        tuple(sorted((o._replace(start=o.start - begin, end=o.end - begin) for o in row), key=lambda o: o.start))
        for row in rows))


def _fields(entry: Any) -> Iterable[Any]:
    names = ("block", "micro_batch", "rank", "start", "end")
    if isinstance(entry, Mapping):
        return [entry[name] for name in names]
    if isinstance(entry, Sequence):
        return entry[:5]
    return [getattr(entry, name) for name in names]


# -- boxes -------------------------------------------------------------------------------------------------------


def boxes(
    shown: Subject, rows: Sequence[Sequence[Operation]], lanes: Sequence[DeviceBand], axis: TimeAxis,
    units: tuple[Unit, Unit], *, pale: bool = False, hover: bool = True,
) -> list[Record]:
    """A row for every box of ``rows`` (operations per device) visible on the axis.

    ``pale`` is for a plan beside its measurement, ``units`` are for time and memory, ``hover`` adds tooltips.
    """
    problem, names = shown.schedule.problem, shown.names
    result = []
    for device, lane in enumerate(lanes):
        for operation in rows[device]:
            block = problem.blocks[operation.block]
            for start, end in axis.clip(operation.start, operation.end):
                pixels = (end - start) / axis.per_pixel
                row: Record = {
                    "micro-batch": names.micro_batch(operation),
                    "x": start, "x2": end, "y": lane.top, "y2": lane.bottom,
                    "kind": shown.kind(operation.block),
                    "fade": 0.45 if pale else 1.0,
                    "edge": None if pixels < OUTLINED else INK if len(block.devices) > 1 else "white",
                }
                if hover:
                    row |= {
                        "block": names.block(operation.block),
                        **{label: text for label, text in (("job", names.job(operation.block)),
                                                           ("class", names.class_of(operation.block)))
                           if text is not None},
                        "device": ", ".join(problem.devices[d].name for d in block.devices),
                        "does": block.kind.value.replace("_", " ") + (", planned" if pale else ""),
                        "start": units[0].show(operation.start, 5), "end": units[0].show(operation.end, 5),
                        "duration": units[0].show(operation.end - operation.start),
                        "memory": _change(block.memory_on(device), block.workspace_on(device), units[1]),
                    }
                result.append(row)
    result.sort(key=lambda row: row["edge"] == INK)  # a dark outline stays on top of its neighbours
    return result


def numbers(drawn: Sequence[Record], axis: TimeAxis, height: float) -> list[Record]:
    """The micro-batch numbers of ``drawn`` boxes, ``height`` pixels high: those that fit, all in one size.

    The size is the largest in which nearly all fit. If too few fit even in the smallest, there are none: isolated
    numbers are not informative.
    """
    def fits(row: Record, size: float) -> bool:
        return bool((row["x2"] - row["x"]) / axis.per_pixel >= text_width(str(row["micro-batch"]), size) + 2.5)

    sizes = [size for size in NUMBER_SIZES if size < height]
    shares = {size: sum(fits(row, size) for row in drawn) / max(1, len(drawn)) for size in sizes}
    size = next((size for size in sizes if shares[size] >= NEARLY_ALL), min(sizes, default=0.0))
    if shares.get(size, 0.0) < TOO_FEW:
        return []
    return [{"x": (row["x"] + row["x2"]) / 2, "y": (row["y"] + row["y2"]) / 2, "text": str(row["micro-batch"]),
             "size": size} for row in drawn if fits(row, size)]


def _change(change: Number, workspace: Number, unit: Unit) -> str:
    sign = "+" if change > 0 else ""
    text = f"{sign}{unit.show(change)}".replace("-", "−")
    return f"{text}, workspace {unit.show(workspace)}" if workspace else text


# -- memory ------------------------------------------------------------------------------------------------------


def memory_steps(shown: Subject, device: int, axis: TimeAxis) -> list[list[tuple[float, float, float, float]]]:
    """Per drawn part of the axis, the ``(position, end position, level, time)`` steps of a device's memory, with the
    base."""
    profile = shown.schedule.memory_profile(device)
    ends = [time for time, _ in profile[1:]] + [shown.schedule.makespan]
    parts: dict[float, list[tuple[float, float, float, float]]] = {shift: [] for _, _, shift in axis.shifts()}
    for (time, level), end in zip(profile, ends, strict=True):
        for first, last, shift in axis.shifts():
            low, high = max(time, first), min(end, last)
            if low < high:
                parts[shift].append((low - shift, high - shift, float(shown.static[device] + level), time))
    return [steps for steps in parts.values() if steps]


# -- phases ------------------------------------------------------------------------------------------------------


def repetend_span(schedule: Schedule) -> tuple[float, float] | None:
    """The interval in which every device repeats its row, ``None`` without a steady state.

    A device repeats while the operation one period further on is the same block, one period's micro-batches later.
    """
    repetend = schedule.repetend
    if repetend is None:
        return None
    begin, end = 0.0, schedule.makespan
    for device, row in enumerate(schedule.device_orders):
        length = repetend.micro_batches * len(schedule.problem.blocks_on[device])
        if not length:
            continue
        stretch = _longest_repeat(row, length, repetend.micro_batches)
        if stretch is None:
            return None
        begin, end = max(begin, row[stretch[0]].start), min(end, row[stretch[1] - 1].end)
    return (begin, end) if begin < end else None


def _longest_repeat(row: Sequence[Operation], length: int, micro_batches: int) -> tuple[int, int] | None:
    """``(from, to)``: the longest stretch of ``row`` that repeats every ``length`` operations."""
    best, run = 0, 0
    stretch = None
    for i in range(len(row) - length):
        here, later = row[i], row[i + length]
        same = here.block == later.block and later.micro_batch == here.micro_batch + micro_batches
        run = run + 1 if same else 0
        if run > best:
            best, stretch = run, (i + 1 - run, i + 1 + length)
    return stretch


#: Pixels of the time axis: at the usual 96 per inch, ten inches, which fit on a landscape page.
WIDTH = 960


@dataclass(frozen=True, slots=True)
class Heights:
    """Pixels: a row of boxes, the memory under it, the space to the next device, and the font of labels."""

    lane: float
    memory: float
    space: float
    label: float

    @property
    def engine(self) -> float:
        """The thin row of a lane, under its device."""
        return max(5.0, 0.55 * self.lane)

    @property
    def plan(self) -> float:
        """The thin lane of planned boxes above a measured lane."""
        return self.lane / 2


def heights_for(devices: int, memory: bool) -> Heights:
    """With many devices lanes are low; with more than 32 there is no room to label their memory."""
    heights = (Heights(20, 24, 10, 11) if devices <= 8 else Heights(15, 15, 7, 10) if devices <= 16
               else Heights(12, 10, 5, 9) if devices <= 32 else Heights(8, 7, 3, 8))
    return heights if memory else Heights(heights.lane, 0, heights.space / 2, heights.label)


@dataclass
class Sheet:
    """The rows of every layer, gathered panel by panel."""

    axis: TimeAxis
    units: tuple[Unit, Unit]
    heights: Heights
    memory_top: float
    hover: bool
    idle: list[Record] = field(default_factory=list)
    boxes: list[Record] = field(default_factory=list)
    numbers: list[Record] = field(default_factory=list)
    outlines: list[Record] = field(default_factory=list)
    areas: list[Record] = field(default_factory=list)
    levels: list[Record] = field(default_factory=list)
    rules: list[Record] = field(default_factory=list)
    texts: list[Record] = field(default_factory=list)
    arrows: list[Record] = field(default_factory=list)

    def text(self, text: str, y: float, size: float, *, x: float, colour: str = INK, align: str = "left",
             bold: bool = False) -> None:
        """Write ``text`` at ``x`` pixels from the left end of the axis, its middle at height ``y``."""
        self.texts.append({"text": name_text(text, TEXT), "px": x, "y": y, "size": size, "colour": colour,
                           "align": align, "bold": bold})

    def line(self, x: float, y: float, x2: float, y2: float, *, colour: str = INK, width: float = 1.0,
             dash: Sequence[float] = ()) -> None:
        """A straight line; ``x`` and ``x2`` are positions on the axis."""
        self.rules.append({"x": x, "y": y, "x2": x2, "y2": y2, "colour": colour, "width": width, "dash": list(dash)})
