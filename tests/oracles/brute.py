"""Least periods and latencies of tiny problems by trying everything; shares no code with the search."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

from weft.solver.problem import Block, Number, Problem


def _exact(value: Number) -> Fraction:
    return Fraction(str(value))


def least_whole_period(problem: Problem, most: int) -> int | None:
    """The least whole period up to ``most`` of a schedule with one micro-batch per period, or None.

    All durations and lags are whole numbers, no links. All whole offsets are tried (with whole data a feasible whole
    period has whole offsets), and all starts that lie no further apart than all work and transfers together, and two
    periods more; block 0 starts in period 0.
    """
    blocks, n = problem.blocks, len(problem.blocks)
    total = sum(int(block.duration) + max((int(wait.lag) for wait in block.after), default=0) for block in blocks)
    for period in range(max(int(block.duration) for block in blocks), most + 1):
        turns = range(-(total // period) - 2, total // period + 3)
        for offsets in product(range(period), repeat=n - 1):
            s = (0, *offsets)
            if _devices_free(problem, s, period) and _placed(problem, s, [s[0]], turns, period):
                return period
    return None


def least_chain_period(problem: Problem, most: int) -> int | None:
    """As :func:`least_whole_period`, of a problem in which block i + 1 waits for block i and for no other.

    Blocks are placed one after the other. None waits for a whole period or longer: without that period every later
    block starts a period earlier, at the same offset, and whatever is held is held for no longer.
    """
    blocks = problem.blocks
    for later, block in enumerate(blocks):
        if [problem.index[wait.block] for wait in block.after if not wait.distance] != list(range(later))[-1:]:
            raise ValueError(f"{problem.name} is no chain")
    peers = [[j for j in range(i) if set(blocks[j].devices) & set(blocks[i].devices)] for i in range(len(blocks))]
    full = [[d for d in block.devices if not any(d in later.devices for later in blocks[i + 1:])]
            for i, block in enumerate(blocks)]  # which devices have all their blocks once this one is placed

    def completed(starts: list[int], period: int) -> bool:
        done = len(starts)
        if done == len(blocks):
            return True
        ready, duration = 0, int(blocks[done].duration)
        if done:
            ready = starts[-1] + int(blocks[done - 1].duration) + max(int(wait.lag) for wait in blocks[done].after)
        for start in range(ready, ready + (period if done else 1)):
            if all(blocks[j].duration <= (start - starts[j]) % period <= period - duration for j in peers[done]):
                placed = [*starts, start]
                if all(_holds(problem, d, placed, period) for d in full[done]) and completed(placed, period):
                    return True
        return False

    longest = max(int(block.duration) for block in blocks)
    return next((period for period in range(longest, most + 1) if completed([], period)), None)


def _placed(problem: Problem, offsets: tuple[int, ...], starts: list[int], turns: range, period: int) -> bool:
    """Whether the blocks after the first ``starts`` have starts at ``offsets`` that complete a schedule."""
    if not _waits(problem, starts, period):
        return False
    if len(starts) == len(offsets):
        return _fits(problem, starts, period)
    return any(_placed(problem, offsets, [*starts, offsets[len(starts)] + k * period], turns, period) for k in turns)


def _devices_free(problem: Problem, offsets: tuple[int, ...], period: int) -> bool:
    blocks = problem.blocks
    for i in range(len(blocks)):
        for j in range(i):
            if set(blocks[i].devices) & set(blocks[j].devices):
                apart = (offsets[i] - offsets[j]) % period
                if not blocks[j].duration <= apart <= period - blocks[i].duration:
                    return False
    return True


def _waits(problem: Problem, starts: list[int], period: int) -> bool:
    """Whether the dependencies among the first ``len(starts)`` blocks hold."""
    known = len(starts)
    return all(starts[j] + dependency.distance * period >= starts[i] + problem.blocks[i].duration + dependency.lag
               for i, j, dependency in problem.dependencies() if i < known and j < known)


def _fits(problem: Problem, starts: list[int], period: int) -> bool:
    """Whether the level right after every start of a taking block stays within the capacity, in the steady state."""
    return all(_holds(problem, d, starts, period) for d in range(len(problem.devices)))


def _holds(problem: Problem, d: int, starts: list[int], period: int) -> bool:
    """The same for one device and its lanes, all of whose blocks are among the first ``len(starts)``."""
    memory = problem.devices[d].memory
    if memory is None:
        return True
    pool = [d, *(lane for lane, device in enumerate(problem.devices) if device.lane_of == problem.devices[d].name)]
    here = [(block, start, e) for block, start in zip(problem.blocks, starts, strict=False)
            for e in pool if e in block.devices]
    for block, time, e in here:
        level = sum((_held(other, engine, time, at, period) for other, at, engine in here), Fraction(0))
        if max(block.memory_on(e), 0) + block.workspace_on(e) > 0 and level > _exact(memory):
            return False
    return True


def _held(block: Block, device: int, time: int, start: int, period: int) -> Fraction:
    """What the instances of ``block`` add to the level right after ``time``, counted from micro-batch 0."""
    begun = math.floor((time - start) / period) + 1
    ended = math.floor((time - start - block.duration) / period) + 1
    change, workspace = _exact(block.memory_on(device)), _exact(block.workspace_on(device))
    return max(change, Fraction(0)) * begun + min(change, Fraction(0)) * ended + workspace * (begun - ended)


def least_latency_on_grid(problem: Problem, longest: Fraction, step: Fraction) -> tuple[Fraction, Fraction] | None:
    """``(period, latency)`` of the least latency, and then the least period, with one micro-batch per period of at most
    ``longest``, over all periods and starts that are multiples of ``step``; None if there is none.

    All durations and lags are whole numbers, no links, 1 / ``step`` is whole: then all starts that a period on the grid
    needs are on it.
    """
    fine = int(1 / step)
    scaled = replace(problem, blocks=tuple(
        replace(block, duration=block.duration * fine,
                after=tuple(replace(wait, lag=wait.lag * fine) for wait in block.after)) for block in problem.blocks))
    blocks = scaled.blocks
    best: tuple[int, int] | None = None  # latency, period

    def place(starts: list[int], period: int) -> None:
        nonlocal best
        begin, end = min(starts, default=0), max((s + int(b.duration) for s, b in zip(starts, blocks, strict=False)),
                                                 default=0)
        if best is not None and (end - begin, period) >= best:
            return
        if len(starts) == len(blocks):
            if _fits(scaled, starts, period):
                best = end - begin, period
            return
        duration = int(blocks[len(starts)].duration)
        widest = (span if best is None else best[0]) - duration
        for start in range(end - (span if best is None else best[0]), begin + widest + 1) if starts else (0,):
            placed = [*starts, start]
            if _free(scaled, placed, period) and _waits(scaled, placed, period):
                place(placed, period)

    span = 2 * sum(int(b.duration) + sum(int(wait.lag) for wait in b.after) for b in blocks)
    for period in range(1, math.floor(longest * fine) + 1):
        place([], period)
    return None if best is None else (best[1] * step, best[0] * step)


def _free(problem: Problem, starts: list[int], period: int) -> bool:
    """Whether the last of the first ``len(starts)`` blocks meets none of the others on a device."""
    last = len(starts) - 1
    block, start = problem.blocks[last], starts[last]
    if block.duration > period:
        return False
    return all(other.duration <= (start - starts[i]) % period <= period - block.duration
               for i, other in enumerate(problem.blocks[:last]) if set(other.devices) & set(block.devices))
