"""All states after so many operations, and those after one more: what layers.cpp does, far slower, and what each step
means.

A state is the number of micro-batches of each block that have started, the last ends of each, the latest first, and the
start of the last operation of all: operations are added in order of start, so the next one starts no earlier. The level
of a device follows from the counts, as its blocks run one at a time.

Dominance:

Two states with the same counts have run the same operations. A time of one matters only as far as it reaches: an end
after which all operations that wait for it have begun, and all transfers have arrived, is as good as any earlier one.
If then no time of the one is later than the other's, nor its last start, any continuation of the other can follow it at
the same times, and the other is superfluous.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.solver.bounds.states.system import Ints, System
from weft.solver.control.clock import checked

#: The number of states, those with the least sums of times among the same counts, that each state is compared with.
_COMPARED = 16


@dataclass(frozen=True)
class ReachedState:
    """``times``: the last ends, block by block, then the last start. ``parent`` is the state's place in the layer
    before, ``added`` the block that was added to it. ``bound``: on the makespan."""

    counts: tuple[int, ...]
    times: tuple[int, ...]
    bound: int
    parent: int
    added: int


class StateLayers:
    """The layers of one search, without the states whose bounds are too large and those that others make superfluous.

    ``reach``: for so long after its end each block may still be waited for. ``mixed``: numbers whose sums distinguish
    counts: they decide in which order states are looked at.
    """

    def __init__(self, system: System, reach: Ints, mixed: Ints) -> None:
        self._system, self._mixed, self._reach = system, mixed.tolist(), reach.tolist()
        waits = system.waits
        self._waits = list(zip(waits.source.tolist(), waits.target.tolist(), waits.lag.tolist(),
                               waits.distance.tolist(), strict=True))
        self._durations, self._spent = system.durations.tolist(), system.spent.tolist()
        self._head, self._tail = system.head.tolist(), system.tail.tolist()
        self._memory = list(zip(system.change.tolist(), system.take.tolist(), system.capacity.tolist(), strict=True))
        self._trace: list[list[ReachedState]] = []

    def next(self, upper: int) -> tuple[int, int]:
        """The number of states of the next layer with a bound below ``upper``, and the least of their bounds."""
        fresh = self._after_one_more(upper) if self._trace else self._seen(
            [0] * len(self._reach), [*[-2**30] * len(self._reach) * self._system.ends, 0], upper, 0, 0)  # ends long ago
        self._trace.append(list(_needed(sorted(fresh, key=self._rank))))
        return len(self._trace[-1]), min((state.bound for state in self._trace[-1]), default=0)

    def narrow(self, most: int) -> None:
        """Only the ``most`` states of the last layer with the least bounds stay, those with the least sums of times
        first."""
        if len(self._trace[-1]) > most:
            self._trace[-1] = sorted(self._trace[-1], key=lambda state: (state.bound, sum(state.times)))[:most]

    def sequence(self) -> list[int]:
        """The blocks of the best state of the last layer, in order of start."""
        state = min(self._trace[-1], key=lambda state: state.bound)
        found = []
        for before in reversed(self._trace[:-1]):
            found.append(state.added)
            state = before[state.parent]
        return found[::-1]

    def _after_one_more(self, upper: int) -> Iterator[ReachedState]:
        ends = self._system.ends
        for row, state in enumerate(checked(self._trace[-1], 256)):
            start, runnable, _ = self._outlook(state.counts, state.times)
            for i in (i for i, runs in enumerate(runnable) if runs):
                end = start[i] + self._durations[i][state.counts[i]]
                if end + self._tail[i][state.counts[i]] < upper:
                    counts, times = list(state.counts), list(state.times)
                    counts[i] += 1
                    times[i * ends:(i + 1) * ends] = [end, *times[i * ends:(i + 1) * ends - 1]]
                    times[-1] = start[i]
                    yield from self._seen(counts, times, upper, row, i)

    def _seen(self, counts: list[int], times: list[int], upper: int, parent: int, added: int) -> Iterator[ReachedState]:
        """The state, with times that no longer matter made equal, if its bound is below ``upper``."""
        bound = self._outlook(counts, times)[2]
        if bound >= upper:
            return
        ends, now = self._system.ends, times[-1]
        matters = {i * ends for i in range(len(counts)) if times[i * ends] > now}
        for source, target, _, distance in self._waits:
            if counts[target] < self._system.micro_batches:
                awaited = counts[source] - (counts[target] - distance)
                matters.update(range(source * ends, source * ends + min(ends, awaited)))
        past = [now - reach for reach in self._reach for _ in range(ends)]
        kept = (max(at, past[place]) if place in matters else past[place] for place, at in enumerate(times[:-1]))
        yield ReachedState(tuple(counts), (*kept, now), bound, parent, added)

    def _outlook(self, counts: Sequence[int], times: Sequence[int]) -> tuple[list[int], list[bool], int]:
        """The least start of each block's next operation; whether it could be the next one; and the least makespan from
        there on: the largest, over the blocks, of the next operation's least start, length and tail; and, over the
        devices, of the least start, the work and the least tail of the rest to run there."""
        system, now, n, ends = self._system, times[-1], self._system.micro_batches, self._system.ends
        start = [max(now, self._head[i][min(count, n - 1)], *(times[mate * ends] for mate in system.mates[i]))
                 for i, count in enumerate(counts)]
        runnable = [count < n for count in counts]
        for change, take, capacity in self._memory:
            room = capacity - sum(map(int.__mul__, change, counts))
            runnable = [runs and not 0 < take[i] > room for i, runs in enumerate(runnable)]
        open_: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by target: what has not started, how far apart
        for source, target, lag, distance in self._waits:
            wanted = counts[target] - distance  # the micro-batch of the source
            since = counts[source] - 1 - wanted
            if 0 <= wanted < n and since < 0:
                runnable[target] = False
                apart = lag + self._spent[source][wanted + 1] - self._spent[source][counts[source]]
                if distance:  # blocks that have not begun begin no earlier than the next operation
                    start[target] = max(start[target], start[source] + apart)
                else:
                    open_[target].append((source, apart))
            elif wanted >= 0 and 0 <= since < ends:
                start[target] = max(start[target], times[source * ends + since] + lag)
        least = list(start)
        for target in system.ranked:
            least[target] = max([least[target], *(least[source] + apart for source, apart in open_[target])])
        bound = max([now, *(least[i] + self._durations[i][count] + self._tail[i][count]
                            for i, count in enumerate(counts) if count < n),
                     *(times[i * ends] + self._tail[i][max(count - 1, 0)] for i, count in enumerate(counts)
                       if times[i * ends] > now)])
        for on in ([i for i in machine if counts[i] < n] for machine in system.machines):
            bound = max(bound, min((least[i] for i in on), default=0) + min((self._tail[i][-1] for i in on), default=0)
                        + sum(self._spent[i][n] - self._spent[i][counts[i]] for i in on))
        return start, runnable, bound

    def _rank(self, state: ReachedState) -> tuple[int, int]:
        return (sum(map(int.__mul__, state.counts, self._mixed)) + 2**63) % 2**64, sum(state.times)


def _needed(ranked: list[ReachedState]) -> Iterator[ReachedState]:
    """The non-dominated states."""
    leaders: dict[tuple[int, ...], list[ReachedState]] = defaultdict(list)
    for state in ranked:
        known = leaders[state.counts]
        if not any(all(map(int.__le__, leader.times, state.times)) for leader in known):
            known += [state] if len(known) < _COMPARED else []
            yield state
