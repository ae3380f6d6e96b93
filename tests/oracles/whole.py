"""Whether a problem has a schedule, and the least makespan, by dynamic programming over what has run.

A block's micro-batches run in order, so what has run is a number for each block. What a device holds depends on that
alone. When things can go on depends on more: when each device and link is free, and when each transfer under way
arrives. Of two such *labels* of the same state, one that is nowhere later makes the other superfluous.

Exact: times and amounts are fractions of the decimal numbers as they are written. No solver, no code of the search.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

from weft.solver.problem import Number, Problem

_State: TypeAlias = tuple[int, ...]
#: Times: of the devices, of the links, of what arrived per (consumer, micro-batch), and of the latest end.
_Label: TypeAlias = tuple[Fraction, ...]


class TooLarge(Exception):
    """The problem has too many labels."""


def _exact(value: Number) -> Fraction:
    return Fraction(str(value))


def _successors(problem: Problem, micro_batches: int, state: _State) -> list[int]:
    """The blocks whose next micro-batch may run: what it waits for has run, and it fits."""
    found = []
    for i, block in enumerate(problem.blocks):
        m = state[i]
        if m == micro_batches or any(state[problem.index[wait.block]] <= m - wait.distance for wait in block.after):
            continue
        if all(_held(problem, state, d) + max(_exact(block.memory_on(d)), Fraction(0)) + _exact(block.workspace_on(d))
               <= _exact(capacity) for d in block.devices if (capacity := problem.devices[d].memory) is not None
               if max(block.memory_on(d), 0) + block.workspace_on(d) > 0):
            found.append(i)
    return found


def _held(problem: Problem, state: _State, device: int) -> Fraction:
    return sum((count * _exact(block.memory_on(device))
                for count, block in zip(state, problem.blocks, strict=True)), Fraction(0))


def fits(problem: Problem, micro_batches: int) -> bool:
    """Whether all operations can be put in some order."""
    last = (micro_batches,) * len(problem.blocks)
    reached = {(0,) * len(problem.blocks)}
    front = list(reached)
    while front:
        state = front.pop()
        for i in _successors(problem, micro_batches, state):
            after = (*state[:i], state[i] + 1, *state[i + 1:])
            if after not in reached:
                reached.add(after)
                front.append(after)
    return last in reached


def least_makespan(problem: Problem, micro_batches: int, most_labels: int = 20_000) -> Fraction | None:
    """The least makespan of ``micro_batches`` micro-batches; None if nothing fits.

    Raises :class:`TooLarge` where more than ``most_labels`` labels are met.
    """
    blocks, n = problem.blocks, micro_batches
    devices, links = len(problem.devices), [link.name for link in problem.links]
    durations = [_exact(block.duration) for block in blocks]
    layer: dict[_State, list[_Label]] = {
        (0,) * len(blocks): [(Fraction(0),) * (devices + len(links) + len(blocks) * n + 1)]}
    met = 0
    for _ in range(len(blocks) * n):
        following: dict[_State, list[_Label]] = {}
        for state, labels in layer.items():
            for i in _successors(problem, n, state):
                after = (*state[:i], state[i] + 1, *state[i + 1:])
                kept = following.setdefault(after, [])
                for label in labels:
                    grown = _run(problem, n, label, i, state[i], durations[i], links)
                    if any(_nowhere_later(other, grown) for other in kept):
                        continue
                    kept[:] = [other for other in kept if not _nowhere_later(grown, other)] + [grown]
                    met += 1
                    if met > most_labels:
                        raise TooLarge
        layer = following
    return min((label[-1] for labels in layer.values() for label in labels), default=None)


def _nowhere_later(first: _Label, second: _Label) -> bool:
    return all(a <= b for a, b in zip(first, second, strict=True))


def _run(problem: Problem, n: int, label: _Label, i: int, m: int, duration: Fraction, links: list[str]) -> _Label:
    """``label`` after block ``i`` of micro-batch ``m`` has been added, as early as it can."""
    times, arrived = list(label), len(problem.devices) + len(links)
    own = arrived + i * n + m
    end = max([times[own], *(times[d] for d in problem.blocks[i].devices)]) + duration
    times[own] = Fraction(0)  # nobody asks again
    for device in problem.blocks[i].devices:
        times[device] = end
    times[-1] = max(times[-1], end)
    for consumer, block in enumerate(problem.blocks):
        for wait in block.after:
            if problem.index[wait.block] != i or m + wait.distance >= n:
                continue
            arrival = end + _exact(wait.lag)
            if wait.link is not None:
                place = len(problem.devices) + links.index(wait.link)
                times[place] = arrival = max(end, times[place]) + _exact(wait.lag)
            target = arrived + consumer * n + m + wait.distance
            times[target] = max(times[target], arrival)
    return tuple(times)
