"""The result: when every block of every micro-batch runs, and the properties that follow from it.

A :class:`Schedule` states; it does not judge. :mod:`weft.solver.judge` decides whether it is feasible.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, compress
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.pools import PooledOrders, memory_waits, mixed_pools, sign
from weft.solver.problem import Number, Problem

if TYPE_CHECKING:
    from weft.solver.problem.rounds import Rounds

#: Times that differ by less than this share of the makespan are equal: adding floats in another order may change as
#: much.
RELATIVE_TOLERANCE = 1e-9
_Columns: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float64], npt.NDArray[np.float64]]
#: By name, the first by default: the least time of one step; the least time after which the next step can begin, as no
#: device (and no link) is longer busy with one; the least time per micro-batch of the steady state; the least time from
#: a micro-batch's first start to its last end, at a throughput.
OBJECTIVES = ("makespan", "span", "rate", "latency")
#: What a schedule's ``solver`` entry calls the bound on each.
BOUND_OF: Mapping[str, str] = {"makespan": "makespan_bound", "span": "span_bound", "rate": "steady_bound",
                               "latency": "latency_bound"}
#: From so many operations on sorting them in columns is faster.
_MANY = 4096


class Operation(NamedTuple):
    """One block of one micro-batch: ``block`` is an index into ``problem.blocks``; times in the problem's unit."""

    block: int
    micro_batch: int
    start: float
    end: float


#: An operation of its four entries, many times as fast as by keyword.
_OPERATION = partial(tuple.__new__, Operation)


class _InOrder(Sequence[Operation]):
    """Operations by start, end and block, sorted once. A large number of timed operations begins as ``columns``
    (blocks, micro-batches, starts, ends), and becomes operations when they are accessed."""

    def __init__(self, made: Iterable[Operation] = (), columns: _Columns | None = None) -> None:
        self.columns = columns
        if columns is None:
            self._made = tuple(made)

    @cached_property
    def _made(self) -> tuple[Operation, ...]:
        assert self.columns is not None
        block, batch, *times = self.columns
        numbers = np.arange(max(block.max(), batch.max()) + 1).astype(object)  # one object each, however often
        return tuple(map(_OPERATION, zip(numbers[block], numbers[batch], *(at.tolist() for at in times), strict=True)))

    @cached_property
    def latest_end(self) -> float:
        return latest_end(self._made) if self.columns is None else float(self.columns[3].max())

    def __len__(self) -> int:
        return len(self._made if self.columns is None else self.columns[0])

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._made)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __eq__(self, other: object) -> bool:
        return self._made == (other._made if isinstance(other, _InOrder) else other)


def operations_at(starts: npt.NDArray[np.float64], durations: Sequence[Number]) -> Sequence[Operation]:
    """The operations of blocks with these ``durations`` that begin at ``starts``, block by block."""
    n = len(starts) // len(durations)
    if len(starts) < _MANY:
        return tuple(_OPERATION((i // n, i % n, at, at + durations[i // n])) for i, at in enumerate(starts.tolist()))
    ends = starts + np.repeat(np.array(durations, dtype=float), n)
    order = np.lexsort((ends, starts)).astype(np.int32)  # the last key sorts first; equal ones in the order of blocks
    return _InOrder(columns=(order // n, order % n, starts[order], ends[order]))


def latest_end(operations: Sequence[Operation]) -> float:
    """The end of the last of ``operations``; 0 without any."""
    if isinstance(operations, _InOrder):
        return operations.latest_end
    return max(map(itemgetter(3), operations), default=0.0)


def _in_order(operations: Sequence[Operation]) -> _InOrder:
    if isinstance(operations, _InOrder):
        return operations
    if len(operations) >= _MANY:
        blocks, _, starts, ends = zip(*operations, strict=True)
        if {*map(type, starts), *map(type, ends)} == {float} and {*map(type, blocks)} == {int}:
            order = np.lexsort(tuple(map(np.array, (blocks, ends, starts))))  # the last key sorts first
            return _InOrder(map(operations.__getitem__, order.tolist()))
    return _InOrder(sorted(operations, key=itemgetter(2, 3, 0)))


@dataclass(frozen=True, slots=True)
class Repetend:
    """The steady state inside a schedule.

    ``first`` is the index of the first whole period, ``count`` the number of periods that repeat, ``micro_batches`` the
    number of micro-batches that one period advances.
    """

    first: int
    count: int
    micro_batches: int = 1


@dataclass(frozen=True, slots=True)
class Bubble:
    """Idle shares, 0 to 1, each over all devices that are not lanes and with its own denominator.

    A lane is not a GPU that idles but an engine beside one; a block counts on its devices that are not lanes.
    ``steady``: idle share of one period (``None`` without a steady state). ``step``: idle share of the whole
    makespan. ``span``: idle share between each device's first start and last end, as zero-bubble papers report it.
    """

    steady: float | None
    step: float
    span: float


@dataclass(frozen=True)
class Schedule:
    """Operations of ``micro_batches`` micro-batches of ``problem``, with lower bounds for all schedules.

    ``operations`` are sorted by start, then end, then block. ``makespan_bound`` and ``period_bound`` are proven lower
    bounds; ``period`` is the time per micro-batch in the steady state, ``None`` if there is none. ``solver`` says how
    it was made: ``name``, ``seconds``, ``seed``, ``version`` and the rest that reproduces it.

    ``choices`` are the options taken where ``problem`` is one of many. With jobs, or micro-batches that differ,
    ``problem`` is the plain problem of ``rounds``, and its micro-batches are the rounds of the run.
    """

    problem: Problem
    micro_batches: int
    operations: Sequence[Operation]
    makespan_bound: float
    period: float | None = None
    period_bound: float | None = None
    repetend: Repetend | None = None
    solver: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    rounds: Rounds | None = None

    def __str__(self) -> str:
        """The schedule and its quality in one line; ``weft.check`` and ``weft solve`` say more."""
        problem = self.problem
        scale, unit = (1e3, "ms") if problem.time_unit == "s" else (1, problem.time_unit)
        devices = sum(device.lane_of is None for device in problem.devices)
        proof = ("no lower bound" if self.gap == float("inf") else "proven optimal" if not self.gap else
                 f"lower bound {self.makespan_bound * scale:.5g} {unit}")
        period = "" if self.period is None else f", period {self.period * scale:.5g} {unit}"
        return (f"{problem.name}: {self.micro_batches} {'micro-batches' if self.rounds is None else 'rounds'} on "
                f"{devices} device{'s' if devices != 1 else ''}, makespan {self.makespan * scale:.5g} {unit} ({proof})"
                f"{period}")

    def __repr__(self) -> str:
        return f"<Schedule of {self}>"

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", _in_order(self.operations))

    @property
    def makespan(self) -> float:
        """Latest end, in the problem's time unit."""
        return latest_end(self.operations)

    @property
    def gap(self) -> float:
        """The most by which the makespan may exceed the best possible, as a share of the bound."""
        if self.makespan <= self.makespan_bound * (1 + RELATIVE_TOLERANCE):
            return 0.0
        return self.makespan / self.makespan_bound - 1 if self.makespan_bound > 0 else float("inf")

    @property
    def objective(self) -> str:
        """What it was searched for, one of :data:`OBJECTIVES`."""
        return str(self.solver.get("objective", "makespan"))

    @property
    def value(self) -> float:
        """The value of its objective, in the problem's time unit; infinite for a rate without a steady state."""
        stated = {"makespan": self.makespan, "rate": self.period}.get(self.objective, self.solver.get(self.objective))
        return float("inf") if stated is None else float(stated)

    @property
    def value_bound(self) -> float:
        """A proven lower bound on :attr:`value`: for every schedule (a rate: every steady state, a latency: at the
        requested throughput)."""
        if self.objective == "makespan":
            return self.makespan_bound
        return float(self.solver.get(BOUND_OF[self.objective], 0.0))

    @property
    def value_gap(self) -> float:
        """The most by which :attr:`value` may exceed the best possible, as a share of its bound."""
        if self.value <= self.value_bound * (1 + RELATIVE_TOLERANCE):
            return 0.0
        return self.value / self.value_bound - 1 if self.value_bound > 0 else float("inf")

    def with_value_bound(self, bound: float) -> Schedule:
        """The same schedule with another :attr:`value_bound`."""
        if self.objective == "makespan":
            return replace(self, makespan_bound=bound)
        return self.with_solver(**{BOUND_OF[self.objective]: bound})

    @property
    def status(self) -> str:
        """``"optimal"`` if the makespan equals its bound, else ``"feasible"``."""
        return "optimal" if self.gap == 0 else "feasible"

    @cached_property
    def device_orders(self) -> tuple[tuple[Operation, ...], ...]:
        """Per device, its operations in the order in which they run."""
        orders: list[list[Operation]] = [[] for _ in self.problem.devices]
        for operation in self.operations:
            for device in self.problem.blocks[operation.block].devices:
                orders[device].append(operation)
        return tuple(tuple(order) for order in orders)

    @cached_property
    def orders(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per device, the ``(block, micro_batch)`` that it runs, in order: :data:`weft.solver.timing.Orders`. If lanes
        share a memory, also which operation waits for the memory of which other
        (:class:`~weft.solver.pools.PooledOrders`)."""
        rows = tuple(tuple((operation.block, operation.micro_batch) for operation in row) for row in self.device_orders)
        pools = mixed_pools(self.problem, sign, sign) if self.problem.has_lanes else ()
        if not pools:
            return rows
        start = {(operation.block, operation.micro_batch): operation.start for operation in self.operations}
        end = {(operation.block, operation.micro_batch): operation.end for operation in self.operations}
        return PooledOrders(rows, memory_waits(self.problem, pools, rows, start, end, self._rounding))

    def memory_profile(self, device: int) -> list[tuple[float, Number]]:
        """``(time, level)`` steps on one device: the level is valid from that time to the next entry's.

        Levels are in the problem's memory unit. An operation takes when it starts and gives back when it ends, before
        the next one on the device takes. The amounts of the device's lanes count on it, in order of time; the level of
        a lane itself is 0.
        """
        return [(0.0, 0), *self._levels(device)]

    def _levels(self, device: int) -> Iterator[tuple[float, Number]]:
        level: Number = 0
        for time, step in self._pool_changes(device) if self.problem.has_lanes else self._changes(device):
            level += step
            yield time, level

    def _changes(self, device: int) -> Iterator[tuple[float, Number]]:
        steps = self._memory_steps(device)
        for operation in self.device_orders[device]:  # a device runs one block at a time: its order suffices
            for time, step in zip(operation[2:], steps[operation[0]], strict=True):
                if step:
                    yield time, step

    def _memory_steps(self, device: int) -> dict[int, tuple[Number, Number]]:
        """The change of the level at the start and at the end of each block of the device and its lanes."""
        blocks = self.problem.blocks
        return {i: (sum(max(blocks[i].memory[place], 0) + blocks[i].workspace[place] for place in places),
                    sum(min(blocks[i].memory[place], 0) - blocks[i].workspace[place] for place in places))
                for i, places in self.problem.pool_places[device].items()}

    def _pool_changes(self, device: int) -> list[tuple[float, Number]]:
        """``(time, amount)`` for every change of the level of the device and its lanes; at one time, ends come first.
        An end later than another operation's start only by rounding is moved to that start."""
        steps = self._memory_steps(device)
        engines = (device, *self.problem.lanes_of[device]) if steps else ()
        row = sorted({operation for engine in engines for operation in self.device_orders[engine]},
                     key=itemgetter(2, 3, 0))
        starts = [operation.start for operation in row]
        changes: list[tuple[float, bool, Number]] = []
        for block, _, start, end in row:
            taken, given = steps[block]
            following = max(bisect_left(starts, end - self._rounding), bisect_right(starts, start))
            given_at = min(end, starts[following]) if following < len(starts) else end
            changes += [(start, True, taken), (given_at, False, given)]
        changes.sort(key=itemgetter(0, 1))
        return [(time, step) for time, _, step in changes if step]

    @cached_property
    def _rounding(self) -> float:
        """The difference of times that are equal except for rounding."""
        work = sum(block.duration + sum(wait.lag for wait in block.after) for block in self.problem.blocks)
        return RELATIVE_TOLERANCE * min(abs(self.makespan), work * self.micro_batches)

    @cached_property
    def peak_memory(self) -> tuple[Number, ...]:
        """Per device, the highest level of its memory profile, in the problem's memory unit; 0 for a lane."""
        return tuple(max(chain((0,), (level for _, level in self._levels(device))))
                     for device in range(len(self.problem.devices)))

    @property
    def peak_with_static(self) -> tuple[Number, ...]:
        """The same with what each device always holds, as ``solver`` says it, or the problem."""
        static = self.solver.get("static_memory") or [device.static for device in self.problem.devices]
        return tuple(base + peak for base, peak in zip(static, self.peak_memory, strict=True))

    @cached_property
    def bubble(self) -> Bubble:
        """Idle shares; see :class:`Bubble`."""
        rows, devices = self.device_orders, len(self.problem.devices)
        loads = sum(block.duration * len(block.devices) for block in self.problem.blocks)
        if self.problem.has_lanes:
            own = [device.lane_of is None for device in self.problem.devices]
            rows, devices = tuple(compress(rows, own)), sum(own)
            loads = sum(block.duration * sum(own[d] for d in block.devices) for block in self.problem.blocks)
        busy = [sum(map(sub, map(itemgetter(3), order), map(itemgetter(2), order))) for order in rows]
        spans = [order[-1].end - order[0].start for order in rows if order]
        steady = None if self.period is None else max(0.0, 1 - loads / (devices * self.period))
        step = 1 - sum(busy) / (devices * self.makespan) if self.makespan else 0.0
        span = 1 - sum(busy) / sum(spans) if sum(spans) else 0.0
        return Bubble(steady, max(0.0, step), max(0.0, span))

    def with_solver(self, **entries: Any) -> Schedule:
        """The same schedule with ``solver`` entries added or replaced."""
        return replace(self, solver={**self.solver, **entries})

    def with_operations(self, operations: Sequence[Operation]) -> Schedule:
        """The same schedule with other operations (for tests and editors)."""
        return replace(self, operations=tuple(operations))
