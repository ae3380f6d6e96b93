"""The least makespan of a tiny wide problem by walking through all that can happen, time step by time step.

Durations and lags are small whole numbers, so some best schedule starts everything at whole times. A state says how
long ago each operation started; at each time any startable operations may start, or none. It knows nothing of plain
problems, rounds, orders or bounds: jobs, classes, lanes and memory are read off the wide problem itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.solver.problem import Block, Number, Problem
from weft.solver.problem.rounds import Run

#: Larger problems take too long: states that are walked through.
_MOST_STATES = 200_000
_UNSTARTED = -1


class TooLarge(Exception):
    """More states than are walked through."""


@dataclass(frozen=True)
class _Operation:
    block: int
    micro_batch: int
    duration: int
    devices: tuple[int, ...]
    #: Pool, what is taken at the start, what is given back at the end.
    holds: tuple[tuple[int, Number, Number], ...]


def least_over_assignments(problem: Problem, run: Run) -> tuple[int | None, dict[str, str] | None]:
    """The least makespan over all assignments, and one that has it; None where nothing fits."""
    found: tuple[int | None, dict[str, str] | None] = (None, None)
    for options in problem.assignments:
        value = least_makespan(problem.under(options), run)
        if value is not None and (found[0] is None or value < found[0]):
            found = value, options
    return found


def least_makespan(problem: Problem, run: Run) -> int | None:
    """The least makespan of ``problem``, which has no choices; None where no schedule fits. No links."""
    return _Walk(problem, run).least()


class _Walk:
    def __init__(self, problem: Problem, run: Run) -> None:
        owners = {device.name: d for d, device in enumerate(problem.devices)}
        self.pool = [d if device.lane_of is None else owners[device.lane_of]
                     for d, device in enumerate(problem.devices)]
        self.room = [device.memory for device in problem.devices]
        blocks = problem.blocks
        self.operations = [self._operation(i, block, m, name) for i, block in enumerate(blocks)
                           for m, name in enumerate(run.classes[block.job])]
        number = {(op.block, op.micro_batch): i for i, op in enumerate(self.operations)}
        names = {block.name: i for i, block in enumerate(blocks)}
        #: Per operation: which others must have ended how long ago, and which must have started.
        self.waits: list[list[tuple[int, int]]] = [[] for _ in self.operations]
        self.turn: list[int | None] = [number.get((op.block, op.micro_batch - 1)) for op in self.operations]
        for i, op in enumerate(self.operations):
            block = blocks[op.block]
            for wait in block.after:
                assert wait.link is None
                before = number.get((names[wait.block], op.micro_batch - wait.distance))
                if before is not None:
                    name = run.classes[block.job][op.micro_batch - wait.distance]
                    lag = wait.by_class["lag"][str(name)] if wait.by_class else wait.lag
                    self.waits[i].append((before, int(lag)))
        self.oldest = [op.duration + max([0, *(lag for waits in self.waits for before, lag in waits if before == i)])
                       for i, op in enumerate(self.operations)]

    def _operation(self, i: int, block: Block, m: int, name: str | None) -> _Operation:
        def of(label: str) -> object:
            return block.by_class[label][str(name)] if label in block.by_class else getattr(block, label)

        memory, space = of("memory"), of("workspace")
        assert isinstance(memory, tuple) and isinstance(space, tuple)
        count = len(block.devices)
        memory, space = (amounts * count if len(amounts) == 1 else amounts for amounts in (memory, space))
        duration = of("duration")
        assert isinstance(duration, int)
        holds = tuple((self.pool[d], max(change, 0) + held, max(-change, 0) + held)
                      for d, change, held in zip(block.devices, memory, space, strict=True))
        return _Operation(i, m, duration, block.devices, holds)

    def least(self) -> int | None:
        states = {tuple([_UNSTARTED] * len(self.operations))}
        seen = set(states)
        time = 0
        while states:
            following: set[tuple[int, ...]] = set()
            for state in states:
                for started in self._starts(state):
                    if all(age >= op.duration for age, op in zip(started, self.operations, strict=True)):
                        return time
                    aged = tuple(age if age == _UNSTARTED else min(age + 1, oldest)
                                 for age, oldest in zip(started, self.oldest, strict=True))
                    if aged not in seen:
                        following.add(aged)
            seen |= following
            if len(seen) > _MOST_STATES:
                raise TooLarge
            states = following
            time += 1
        return None

    def _starts(self, state: tuple[int, ...], first: int = 0) -> Iterator[tuple[int, ...]]:
        """``state`` with every set of operations started that may start now, one after the other by number."""
        yield state
        for i in range(first, len(state)):
            if state[i] == _UNSTARTED and self._may_start(state, i):
                started = (*state[:i], 0, *state[i + 1:])
                if self._fits(started):
                    yield from self._starts(started, i + 1)

    def _may_start(self, state: tuple[int, ...], i: int) -> bool:
        op, turn = self.operations[i], self.turn[i]
        if turn is not None and state[turn] < 1:  # the micro-batch before starts before
            return False
        if any(state[before] == _UNSTARTED or state[before] < self.operations[before].duration + lag
               for before, lag in self.waits[i]):
            return False
        return not any(0 <= age < other.duration and set(other.devices) & set(op.devices)
                       for age, other in zip(state, self.operations, strict=True))

    def _fits(self, state: tuple[int, ...]) -> bool:
        level: dict[int, Number] = {}
        for age, op in zip(state, self.operations, strict=True):
            for pool, take, give in op.holds:
                level[pool] = level.get(pool, 0) + (take if age >= 0 else 0) - (give if age >= op.duration else 0)
        return all(room is None or level.get(pool, 0) <= room for pool, room in enumerate(self.room))
