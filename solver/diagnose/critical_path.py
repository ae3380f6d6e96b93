"""The waits that determine a schedule's length: the critical path of its makespan and the critical cycle of its period.

*Critical path.* Walking back from the last operation, each start is delayed by an end at the same time: the operation
before it on a device, a producer's transfer, or the transfer before it on a link. The walk covers all the time from 0
to the makespan, so nothing in this order ends sooner unless a step of the path gets shorter.

*Critical cycle.* In the steady state the order of every device and link and the dependencies are difference
constraints between instances: t_j >= t_i + weight - height x period. The period is the largest weight / height of any
cycle (:mod:`weft.solver.period.periodic` finds it for one micro-batch per period; here it is read off the rows of a
schedule, for any number).

A device's order is called a *memory* wait if it was forced: the later operation was ready when the earlier one started,
but before it, it would not have fitted into the device's memory. A wait for memory that another engine of a shared one
gives back (:mod:`weft.solver.pools`) is a memory wait too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Literal, TypeAlias

from weft.solver.pools import PooledOrders
from weft.solver.problem import Dependency, Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Operation, Schedule
from weft.solver.ticks import TickProblem

#: The reason why a start is not earlier: the first of all; a producer; the transfer before it on its link; the
#: operation before it on its device, and whether memory forces that order; none (it could start earlier).
Reason: TypeAlias = Literal["start", "dependency", "link", "device", "memory", "none"]

#: (block, micro-batch)
Op: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """A stretch of the critical path, in the problem's time unit.

    ``operation`` is the one that runs, whose result a transfer carries, or that waits for nothing. ``device`` is the
    device whose order delays it (reasons ``device`` and ``memory``). ``link`` is the link a transfer occupies.
    """

    kind: Literal["operation", "transfer", "wait"]
    start: float
    end: float
    operation: Operation
    reason: Reason
    device: int | None = None
    link: str | None = None

    @property
    def length(self) -> float:
        """Its duration."""
        return self.end - self.start


@dataclass(frozen=True)
class CriticalPath:
    """``steps`` from time 0 to the makespan, each beginning where the one before ends."""

    steps: tuple[CriticalStep, ...]

    @property
    def length(self) -> float:
        """The sum of the steps: the makespan."""
        return sum(step.length for step in self.steps)

    @cached_property
    def operations(self) -> frozenset[Op]:
        """The ``(block, micro_batch)`` that run on the path."""
        return frozenset((step.operation.block, step.operation.micro_batch) for step in self.steps
                         if step.kind == "operation")


def critical_path(schedule: Schedule) -> CriticalPath:
    """The critical path of a valid ``schedule``. Among several it stays on one device as long as possible."""
    waits = Waits(schedule)
    levels = Levels(schedule)
    tolerance = waits.tolerance
    steps: list[CriticalStep] = []
    operation = max(schedule.operations, key=lambda o: o.end)
    while True:
        found = waits.of(operation)
        at, reason, device, source = max(found, key=lambda entry: entry[0], default=(0.0, "start", None, None))
        on_device = next((entry for entry in found if entry[1] == "device" and entry[0] >= at - tolerance), None)
        if on_device is not None:
            at, reason, device, source = on_device
        if at < operation.start - tolerance:
            steps.append(CriticalStep("operation", operation.start, operation.end, operation, "none"))
            steps.append(CriticalStep("wait", at, operation.start, operation, reason))
        elif reason == "memory":
            steps.append(CriticalStep("operation", operation.start, operation.end, operation, reason, device))
        elif isinstance(source, Operation) and device is not None:
            forced = waits.ready(operation) <= source.start + tolerance and levels.exchange_breaks(source, operation)
            steps.append(CriticalStep("operation", operation.start, operation.end, operation,
                                      "memory" if forced else "device", device))
        else:
            steps.append(CriticalStep("operation", operation.start, operation.end, operation, reason))
        if isinstance(source, Operation):
            operation = source
        elif source is not None:
            operation = _through_transfers(source, waits, steps)
        else:
            return CriticalPath(tuple(reversed(steps)))


def _through_transfers(transfer: TransferWait, waits: Waits, steps: list[CriticalStep]) -> Operation:
    """Add the transfers that led to the end of ``transfer``, latest first; the producer of the first of them."""
    while True:
        producer, before = transfer.producer, transfer.before
        queued = before is not None and transfer.begin > producer.end + waits.tolerance
        if transfer.end > transfer.begin:
            steps.append(CriticalStep("transfer", transfer.begin, transfer.end, producer,
                                      "link" if queued else "dependency", link=transfer.link))
        if not queued or before is None:
            return producer
        transfer = before


# -- what operations wait for ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransferWait:
    """From ``producer``'s end, or the end of the transfer ``before`` it on the link, to the arrival at ``end``."""

    producer: Operation
    begin: float
    end: float
    link: str | None
    before: TransferWait | None


#: The time until which an operation is delayed, the reason, the device, and the cause.
Wait: TypeAlias = tuple[float, Reason, "int | None", "Operation | TransferWait | None"]


class Waits:
    """The waits of every operation of a valid schedule, and their ends."""

    def __init__(self, schedule: Schedule) -> None:
        problem = schedule.problem
        self.tolerance = RELATIVE_TOLERANCE * schedule.makespan
        self.at: dict[Op, Operation] = {(o.block, o.micro_batch): o for o in schedule.operations}
        self._before: dict[Op, list[tuple[int, Operation]]] = {}
        for device, row in enumerate(schedule.device_orders):
            for earlier, later in pairwise(row):
                self._before.setdefault((later.block, later.micro_batch), []).append((device, earlier))
        self._sources: list[list[tuple[int, int, Dependency]]] = [[] for _ in problem.blocks]
        for number, (producer, consumer, dependency) in enumerate(problem.dependencies()):
            self._sources[consumer].append((number, producer, dependency))
        self._carried = self._on_links(schedule)
        self._given: dict[Op, list[Operation]] = {}  # possible sources of an operation's memory
        orders = schedule.orders
        for giver, taker in orders.waits if isinstance(orders, PooledOrders) else ():
            self._given.setdefault(taker, []).append(self.at[giver])
        self._owner, self._devices = problem.pool_of, [block.devices for block in problem.blocks]

    def _on_links(self, schedule: Schedule) -> dict[tuple[int, int], TransferWait]:
        """Transfers on links by (dependency number, producer's micro-batch)."""
        carried: dict[tuple[int, int], TransferWait] = {}
        outgoing: dict[int, list[tuple[int, Dependency]]] = {}
        for number, (producer, _, dependency) in enumerate(schedule.problem.dependencies()):
            if dependency.link is not None:
                outgoing.setdefault(producer, []).append((number, dependency))
        last: dict[str, TransferWait] = {}
        for operation in schedule.operations if outgoing else ():  # by start: a link follows its source device's order
            for number, dependency in outgoing.get(operation.block, ()):
                link = dependency.link
                if link is None or operation.micro_batch + dependency.distance >= schedule.micro_batches:
                    continue
                before = last.get(link)
                begin = operation.end if before is None else max(operation.end, before.end)
                last[link] = carried[number, operation.micro_batch] = TransferWait(
                    operation, begin, begin + dependency.lag, link, before)
        return carried

    def transfers(self, operation: Operation) -> Iterator[TransferWait]:
        """The transfers that ``operation`` needs from its producers, each with its arrival."""
        for number, producer, dependency in self._sources[operation.block]:
            m = operation.micro_batch - dependency.distance
            if m < 0:
                continue
            if dependency.link is not None:
                yield self._carried[number, m]
            else:
                source = self.at[producer, m]
                yield TransferWait(source, source.end, source.end + dependency.lag, None, None)

    def ready(self, operation: Operation) -> float:
        """The time at which all inputs of ``operation`` are available."""
        return max((transfer.end for transfer in self.transfers(operation)), default=0.0)

    def of(self, operation: Operation) -> list[Wait]:
        """All waits of ``operation``."""
        found: list[Wait] = [(earlier.end, "device", device, earlier)
                            for device, earlier in self._before.get((operation.block, operation.micro_batch), ())]
        found += [(transfer.end, "dependency", None, transfer) for transfer in self.transfers(operation)]
        found += [(giver.end, "memory", self._owner[self._devices[giver.block][0]], giver)
                 for giver in self._given.get((operation.block, operation.micro_batch), ())]
        return found


class Levels:
    """Memory levels along every device's row, in exact units, and the effect of changes of its order on them."""

    def __init__(self, schedule: Schedule) -> None:
        self.problem: Problem = schedule.problem
        self.instance = TickProblem.of(schedule.problem)
        self.rows: Sequence[Sequence[Operation]] = schedule.device_orders
        self._place: list[dict[Op, int]] = []
        self._level: list[list[int]] = []  # before each operation of the row
        for device, row in enumerate(self.rows):
            self._place.append({(o.block, o.micro_batch): place for place, o in enumerate(row)})
            levels, change = [0], self.instance.change[device]
            for operation in row:
                levels.append(levels[-1] + change[operation.block])
            self._level.append(levels)
        self._profiles = [schedule.memory_profile(pool.owner) for pool in self.instance.mixed_pools]

    def place(self, device: int, operation: Operation) -> int:
        """The index of ``operation`` in the device's row."""
        return self._place[device][operation.block, operation.micro_batch]

    def exchange_breaks(self, earlier: Operation, later: Operation) -> bool:
        """Whether ``later``, run just before ``earlier``, would break the memory of a device they share."""
        shared = set(self.problem.blocks[earlier.block].devices) & set(self.problem.blocks[later.block].devices)
        return any(self.moving_breaks(device, later, self.place(device, earlier)) for device in shared)

    def starting_breaks(self, operation: Operation, time: float) -> bool:
        """Whether ``operation``, started at ``time`` instead, would exceed a memory that lanes share."""
        for pool, profile in zip(self.instance.mixed_pools, self._profiles, strict=True):
            until = bisect_left(profile, operation.start, key=itemgetter(0))
            begin = bisect_right(profile, time, key=itemgetter(0)) - 1
            levels = [level for _, level in profile[max(begin, 0):until]]
            more = pool.take.get(operation.block, 0)
            if more and levels and max(levels) / float(self.instance.memory_unit) + more > pool.capacity * (1 + 1e-9):
                return True
        return False

    def moving_breaks(self, device: int, operation: Operation, to: int) -> bool:
        """Whether the device's memory would be exceeded if ``operation`` ran at place ``to`` of its row, the others
        moving back by one."""
        capacity = self.instance.capacity[device]
        if capacity is None:
            return False
        take, change, level = self.instance.take[device], self.instance.change[device], self._level[device]
        if level[to] + take[operation.block] > capacity:
            return True
        row, added = self.rows[device], change[operation.block]
        return added > 0 and any(level[k] + added + take[row[k].block] > capacity
                                 for k in range(to, self.place(device, operation)))
