"""More (or fewer) micro-batches for a solved schedule: whole periods put in or taken out, no search; and a periodic
schedule run for some micro-batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from weft.solver.bounds import least_time
from weft.solver.judge.validate import validate, violations
from weft.solver.period.periodic import Periodic, in_order
from weft.solver.period.reductions.multi_batch import in_copies
from weft.solver.pools import PooledOrders
from weft.solver.problem import Problem
from weft.solver.relations.pool_pass import paced
from weft.solver.schedule import RELATIVE_TOLERANCE, Operation, Repetend, Schedule
from weft.solver.step.goals import timed_for
from weft.solver.step.proven import Proven
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders

#: So many places to put repeats in are tried for the one that keeps the period stated.
_MOST_PLACES = 64
#: What a schedule's ``solver`` says of so many micro-batches only, or of blocks that wait for their time.
_OF_ONE_NUMBER = frozenset({"alternatives", "bound_over_any_placement", "bound_over_placements", "covered", "history",
                            "latency", "latency_bound", "latency_period", "objective", "placements", "span",
                            "span_bound"})


def unroll(schedule: Schedule, micro_batches: int) -> Schedule:
    """``schedule`` for another number of micro-batches, re-timed, with its bound, and checked by the judge.

    Blocks start as early as their order allows, or as the least span needs where that is the objective; what
    ``weft latency`` stated of a schedule whose blocks wait for their time (:func:`at_its_times`) is taken out, as it no
    longer holds.

    Raises ``ValueError`` if the schedule has no repetend, or fewer micro-batches are asked for than leave one period.
    """
    repetend = schedule.repetend
    if micro_batches == schedule.micro_batches:
        return schedule
    if repetend is None:
        raise ValueError("the schedule has no repetend to repeat; solve it again for this number of micro-batches")
    periods, rest = divmod(micro_batches - schedule.micro_batches, repetend.micro_batches)
    if rest:
        raise ValueError(f"the schedule's period advances {repetend.micro_batches} micro-batches: their number can "
                         f"change by multiples of that only, not from {schedule.micro_batches} to {micro_batches}")
    if repetend.count + periods < 1:
        least = schedule.micro_batches - (repetend.count - 1) * repetend.micro_batches
        raise ValueError(f"the schedule's warm-up and cool-down take {least} micro-batches, it cannot run "
                         f"{micro_batches}")
    problem = schedule.problem
    rows = [list(row) for row in schedule.orders]
    instance = TickProblem.of(problem)
    ends, period = _sustained(schedule, instance, rows)
    if ends is None:
        raise ValueError("what the schedule's devices repeat does not fit together: a block in one device's stretch "
                         "waits for one behind another's; solve it again for this number of micro-batches")
    orders = [_stretched(row, end, len(on) * repetend.micro_batches, periods, repetend.micro_batches)
              for row, end, on in zip(rows, ends, problem.blocks_on, strict=True)]
    timed = paced(instance, micro_batches, _with_waits(schedule, rows, ends, orders, periods))
    if timed is None:
        raise ValueError("the schedule's repeats leave no way to keep the memory that lanes share; solve it again for "
                         "this number of micro-batches")
    result = replace(
        schedule,
        micro_batches=micro_batches,
        period=period,
        operations=time_orders(problem, micro_batches, timed),
        makespan_bound=least_time(instance, micro_batches),
        repetend=replace(repetend, count=repetend.count + periods),
        solver={key: value for key, value in schedule.solver.items() if key not in _OF_ONE_NUMBER},
    )
    if schedule.objective in ("span", "rate"):
        result = timed_for(result, schedule.objective)
        proven = Proven(instance, micro_batches)
        proven.raise_by_all(schedule.objective)
        result = result.with_value_bound(min(result.value, proven.of(schedule.objective)))
    return _judged(result, repetend.first)


def _judged(schedule: Schedule, first: int) -> Schedule:
    """``schedule`` once the judge has passed it.

    A few repeats may stand in several places of a row. Where more of them were put in, all together may begin some
    micro-batches before ``first``: then that is what the repetend says.
    """
    for begin in range(first, -1, -1):
        assert schedule.repetend is not None
        moved = replace(schedule, repetend=replace(schedule.repetend, first=begin))
        if not violations(moved, limit=1):
            return moved
    validate(schedule)
    return schedule


def _sustained(schedule: Schedule, instance: TickProblem, rows: Sequence[Sequence[tuple[int, int]]]
               ) -> tuple[list[int] | None, float | None]:
    """Where the stretches end of which more repeats go in, and the time per micro-batch that these sustain.

    One period, or few, may stand in several places of the rows, and each place repeats another order: the first that
    sustains the period stated is taken, or of those tried the shortest. Where lanes share a memory, for which blocks
    may have to wait on, it is the first place and the period stated.
    """
    assert schedule.repetend is not None
    places = islice(_all_repeats(schedule.problem, rows, schedule.repetend), _MOST_PLACES)
    if schedule.period is None or instance.mixed_pools:
        return next(places, None), schedule.period
    best: tuple[list[int] | None, float | None] = None, None
    for ends in places:
        period = _period(instance, rows, ends, schedule.repetend.micro_batches)
        if best[0] is None or (period is not None and (best[1] is None or period < best[1])):
            best = ends, period
        if period is not None and period <= schedule.period * (1 + RELATIVE_TOLERANCE):
            break
    return best


def _period(instance: TickProblem, rows: Sequence[Sequence[tuple[int, int]]], ends: Sequence[int], step: int
            ) -> float | None:
    """Time per micro-batch where what ends at ``ends`` of ``rows``, every block ``step`` times, goes on for ever; None
    if it waits for itself."""
    blocks = len(instance.durations)
    rings = [[(m % step * blocks + i, m // step) for i, m in row[end - len(on) * step:end]]
             for row, end, on in zip(rows, ends, instance.problem.blocks_on, strict=True)]
    found = in_order(instance if step == 1 else in_copies(instance, step), rings, step)
    return None if found is None else instance.time(found.rate)


def at_its_times(found: Periodic, micro_batches: int) -> Schedule:
    """``found`` for micro-batches 0 .. N-1, each block when its period has it, from 0 on.

    No block runs earlier than that, as it would in a schedule that is timed by its order: every micro-batch has the
    latency of ``found``. ``found`` has one micro-batch per period.
    """
    instance, problem = found.instance, found.instance.problem
    first = min(found.starts)

    def operation(block: int, micro_batch: int) -> Operation:
        start = instance.time(found.starts[block] - first + micro_batch * found.period)
        return Operation(block, micro_batch, start, start + problem.blocks[block].duration)

    whole = micro_batches - found.depth
    return Schedule(
        problem, micro_batches,
        tuple(operation(block, m) for block in instance.blocks for m in range(micro_batches)),
        makespan_bound=least_time(instance, micro_batches),
        period=instance.time(found.period) if whole > 0 else None,
        repetend=Repetend(found.depth, whole) if whole > 0 else None,
        solver={"name": "weft"})


def _stretched(row: list[tuple[int, int]], end: int, length: int, periods: int, step: int) -> list[tuple[int, int]]:
    """``row`` with ``periods`` more repeats (fewer, if negative) of the ``length`` operations before ``end``."""
    extra = periods * step
    last = row[end - length:end]
    return [*row[:end + min(periods, 0) * length],
            *((block, m + turn * step) for turn in range(1, periods + 1) for block, m in last),
            *((block, m + extra) for block, m in row[end:])]


def _with_waits(schedule: Schedule, rows: Sequence[Sequence[tuple[int, int]]], ends: Sequence[int], orders: Orders,
                periods: int) -> Orders:
    """``orders`` with what ``schedule`` waits for in the memory of its lanes: before the repeats put in, and behind
    them, as without them; in them as in the repeat before. As they are where lanes share none."""
    known, repetend = schedule.orders, schedule.repetend
    if not isinstance(known, PooledOrders) or repetend is None:
        return orders
    step = repetend.micro_batches
    lengths = [len(on) * step for on in schedule.problem.blocks_on]
    behind = {op for row, end in zip(rows, ends, strict=True) for op in row[end:]}
    last = {op for row, end, length in zip(rows, ends, lengths, strict=True) for op in row[end - length:end]}
    there = {op for row in orders for op in row}
    waits = []
    for giver, taker in known.waits:
        turns = [periods] if taker in behind else [0, *range(1, periods + 1)] if taker in last else [0]
        waits += [((giver[0], giver[1] + turn * step), (taker[0], taker[1] + turn * step)) for turn in turns]
    return PooledOrders(orders, [(giver, taker) for giver, taker in waits if giver in there and taker in there])


def repeats(problem: Problem, rows: Sequence[Sequence[tuple[int, int]]], repetend: Repetend) -> list[int] | None:
    """Where each device's stretch of repeats ends, such that all can be put in once more; None if they fit nowhere. Of
    several ways the one in which all end first.

    A stretch is as the judge has it: ``count`` times every block of the device ``micro_batches`` times, each time so
    many micro-batches further. It may stand in several places of a row, in most of them if there is but one repeat. Put
    in after ends before which all is done that is waited for there, the repeats deadlock nowhere: an operation of one
    waits for what the repeat before it has in the same place, or for earlier. The first such ends are found by
    moving each end on to its next place as long as something before it waits for something behind another.
    """
    return next(_all_repeats(problem, rows, repetend), None)


def _all_repeats(problem: Problem, rows: Sequence[Sequence[tuple[int, int]]], repetend: Repetend
                 ) -> Iterator[list[int]]:
    """All ways for :func:`repeats`, the one in which all end first to begin with. From each, one end is moved on and
    the others as far as that asks: any other way is reached so, as none of its ends is passed over."""
    places = [ends_of_repeats(row, len(on) * repetend.micro_batches, repetend.count, repetend.micro_batches)
              for row, on in zip(rows, problem.blocks_on, strict=True)]
    position = [{op: place for place, op in enumerate(row)} for row in rows]
    waits: list[list[tuple[int, int]]] = [[(i, 0)] for i in range(len(problem.blocks))]  # for itself, elsewhere too
    for producer, consumer, dependency in problem.dependencies():
        waits[consumer].append((producer, dependency.distance))

    def moved_on(least: list[int]) -> list[int] | None:
        """The first ends with so many operations of each row before them, at least."""
        ends = [0] * len(rows)
        open_ = [device for device, row in enumerate(rows) if row]
        while open_:
            device = open_.pop()
            end = next((end for end in places[device] if end >= least[device]), None)
            if end is None:
                return None
            begin, ends[device] = ends[device], end
            for block, m in rows[device][begin:end]:
                for before, distance in waits[block]:
                    for other in problem.blocks[before].devices if m >= distance else ():
                        needed = position[other][before, m - distance] + 1
                        if needed > max(least[other], ends[other]):
                            least[other] = needed
                            open_.append(other)
        return ends

    rest = deque([moved_on([0] * len(rows))])
    seen: set[tuple[int, ...]] = set()
    while rest:
        ends = rest.popleft()
        if ends is None or tuple(ends) in seen:
            continue
        seen.add(tuple(ends))
        yield ends
        rest.extend(moved_on([end + (device == further) for device, end in enumerate(ends)])
                    for further, row in enumerate(rows) if row)


def ends_of_repeats(row: Sequence[tuple[int, int]], length: int, count: int, step: int) -> list[int]:
    """Where stretches of ``count`` repeats end in ``row``, in rising order."""
    found: list[int] = []
    times: dict[int, int] = {}  # of each block in the last ``length`` operations
    full = run = 0  # blocks that are there ``step`` times; operations in turn that are as one length before
    for place, (block, m) in enumerate(row):
        times[block] = times.get(block, 0) + 1
        full += (times[block] == step) - (times[block] - 1 == step)
        before = place - length
        run = run + 1 if before >= 0 and row[before] == (block, m - step) else 0
        if before >= 0:
            gone = row[before][0]
            times[gone] -= 1
            full += (times[gone] == step) - (times[gone] + 1 == step)
        if place + 1 >= length and full * step == length and run >= (count - 1) * length:
            found.append(place + 1)
    return found
