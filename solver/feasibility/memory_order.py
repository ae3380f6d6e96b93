"""An order of all operations that fits the devices' memory, or a proof that there is none.

A device runs one block at a time, so its level depends on which operations have run, not on when (the level that it
shares with its lanes hangs on times, but needs no less than one operation after the other does:
:attr:`~weft.solver.ticks.TickProblem.in_sequence`): a problem has a schedule exactly if all operations can be put one
after the other, each where dependencies and memory allow it.

* *States.* As a block's micro-batches run in order, a state is a number for each block. A depth-first search over these
  states enters none twice; if it ends without an order, there is none. An operation that fits and after which no device
  has a higher level is run at once: from any order that continues without it, take it out and put it first; then it
  fits, and those that ran before it find no less room.
* *Model.* If there are too many states, CP-SAT searches for places of the operations (:class:`PlaceModel`). Its proofs
  count if a second configuration does not contradict them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import proven, run
from weft.solver.late import cp_model
from weft.solver.pools import one_after_another
from weft.solver.problem import Problem
from weft.solver.relations.fixed_order import Op
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

#: By device: the amount that each block takes, its change of the level, and the capacity.
Memory: TypeAlias = tuple[Sequence[Mapping[int, int]], Sequence[Mapping[int, int]], Sequence[int | None]]
#: Visits of a block in a state that count as a second of deterministic time.
_SECOND = 1e6
#: The most visits of searches over states: with each preference at first, and to their end.
_FEW_LOOKS, _MOST_LOOKS = 20_000, 20_000_000
#: Up to this number of operations a model is built: it has a Boolean for most pairs of a device.
_MOST_OPERATIONS = 300


@dataclass(frozen=True)
class MemoryOrder:
    """``order``: all operations in an order that fits, if one is found. ``impossible``: it is proven that none does.
    Neither: not decided."""

    order: tuple[Op, ...] | None = None
    impossible: bool = False

    @property
    def decided(self) -> bool:
        """Whether there is an answer."""
        return self.impossible or self.order is not None


def find_room(instance: TickProblem, micro_batches: int, budget: Budget, deterministic: float = float("inf")
              ) -> MemoryOrder:
    """Whether ``micro_batches`` micro-batches fit the memory at all, in any order.

    Within ``budget`` and about ``deterministic`` seconds of it.
    """
    instance = instance.in_sequence
    time = budget.slice(deterministic)
    for looks, oldest_first in ((_FEW_LOOKS, True), (_FEW_LOOKS, False), (_MOST_LOOKS, False)):
        left = min(time.left, budget.deterministic_left)
        states = MemoryStates(instance.problem, (instance.take, instance.change, instance.capacity), micro_batches,
                        oldest_first=oldest_first)
        found = states.search(int(min(looks, left / 2 * _SECOND)), lambda: budget.spent)
        budget.deterministic_used += states.looks / _SECOND
        if found.decided:
            return found
    if time.spent or micro_batches * len(instance.durations) > _MOST_OPERATIONS:
        return MemoryOrder()
    model = PlaceModel(instance, micro_batches)
    outcome = proven(model.model, budget, deterministic=time.left)
    if outcome.found:
        return MemoryOrder(model.read(outcome.solver))
    return MemoryOrder(impossible=outcome.infeasible)


def device_rows(instance: TickProblem, order: Sequence[Op]) -> Orders:
    """The order of each device if all operations run in ``order``, on mixed pools one after the other."""
    if instance.mixed_pools:
        return one_after_another(instance.problem, instance.mixed_pools, order)
    rows: list[list[Op]] = [[] for _ in instance.capacity]
    for op in order:
        for device in instance.problem.blocks[op[0]].devices:
            rows[device].append(op)
    return rows


class MemoryStates:
    """The search over states, in a ``memory``: by device, the amounts that blocks take, their changes, and the
    capacity. ``oldest_first`` prefers old micro-batches, otherwise blocks with the greatest need while they run."""

    def __init__(self, problem: Problem, memory: Memory, micro_batches: int, *, oldest_first: bool) -> None:
        self.micro_batches = micro_batches
        self.looks = 0
        self._oldest_first = oldest_first
        self._waits: list[list[tuple[int, int]]] = [[] for _ in problem.blocks]
        self._next: list[set[int]] = [{i} for i in range(len(problem.blocks))]  # blocks that may become ready
        for source, target, dependency in problem.dependencies():
            self._waits[target].append((source, dependency.distance))
            self._next[source].add(target)
        self._rank = {i: place for place, i in enumerate(problem.topological_order)}
        self._needs: list[list[tuple[int, int, int]]] = [[] for _ in problem.blocks]  # (device, take, change)
        self._room = [0] * len(problem.devices)
        takes, changes, rooms = memory
        for device, (take, change, room) in enumerate(zip(takes, changes, rooms, strict=True)):
            if room is not None and any(take.values()):
                self._room[device] = room
                for i, amount in take.items():
                    self._needs[i].append((device, amount, change[i]))
        for i, needs in enumerate(self._needs):  # what gives makes room for all that takes there
            self._next[i].update(*(takes[device] for device, _, change in needs if change < 0))
        self._safe = [all(change <= 0 for _, _, change in needs) for needs in self._needs]
        #: The amount that a block needs in excess of the amount that it keeps.
        self._hump = [sum(take - change for _, take, change in needs) for needs in self._needs]
        self.counts = [0] * len(self._needs)
        self.ran: list[int] = []

    def search(self, most_looks: int, is_over: Callable[[], bool]) -> MemoryOrder:
        """An order or a proof, after at most about ``most_looks`` visits of blocks."""
        blocks = range(len(self.counts))
        seen: set[tuple[int, ...]] = set()
        self._run_safe(set(blocks))
        stack: list[tuple[int, list[int]]] = [(len(self.ran), self._choices())]
        while len(self.ran) < self.micro_batches * len(self.counts):
            if self.looks > most_looks or is_over():
                return MemoryOrder()
            begin, choices = stack[-1]
            while len(self.ran) > begin:
                self._undo()
            if not choices:
                stack.pop()
                if not stack:
                    return MemoryOrder(impossible=True)
                continue
            block = choices.pop()
            self._run(block)
            self._run_safe(self._next[block])
            state = tuple(self.counts)
            if state not in seen:
                seen.add(state)
                stack.append((len(self.ran), self._choices()))
        counted = [0] * len(self.counts)
        order = []
        for block in self.ran:
            order.append((block, counted[block]))
            counted[block] += 1
        return MemoryOrder(tuple(order))

    def _choices(self) -> list[int]:
        """The blocks that can run, the most preferred last."""
        possible = [i for i in range(len(self.counts)) if self._can_run(i)]
        if self._oldest_first:
            return sorted(possible, key=lambda i: (self.counts[i], self._rank[i]), reverse=True)
        return sorted(possible, key=lambda i: (self._hump[i], -self.counts[i], -self._rank[i]))

    def _can_run(self, block: int) -> bool:
        self.looks += 1
        m = self.counts[block]
        return (m < self.micro_batches
                and all(self.counts[before] > m - distance for before, distance in self._waits[block])
                and all(take <= self._room[device] for device, take, _ in self._needs[block]))

    def _run_safe(self, possible: set[int]) -> None:
        """Run all blocks that raise the level of no device."""
        waiting = sorted(possible, key=self._rank.__getitem__, reverse=True)
        while waiting:
            block = waiting.pop()
            if self._safe[block] and self._can_run(block):
                self._run(block)
                waiting += sorted(self._next[block], key=self._rank.__getitem__, reverse=True)

    def _run(self, block: int) -> None:
        self.counts[block] += 1
        self.ran.append(block)
        for device, _, change in self._needs[block]:
            self._room[device] -= change

    def _undo(self) -> None:
        block = self.ran.pop()
        self.counts[block] -= 1
        for device, _, change in self._needs[block]:
            self._room[device] += change


@dataclass(frozen=True)
class Excess:
    """The additional memory, by device, with which all operations fit in ``order``. ``least``: no smaller sum does."""

    missing: dict[int, int]
    order: tuple[Op, ...]
    least: bool


class PlaceModel:
    """Places of all operations in one sequence that keeps dependencies and memory.

    ``more``: devices may have more memory, which :meth:`least_excess` minimises. ``kept`` is the memory that other
    micro-batches occupy on a device throughout.
    """

    def __init__(self, instance: TickProblem, micro_batches: int, *, more: bool = False,
                 kept: Mapping[int, int] | None = None) -> None:
        self.instance = instance
        rank = {i: place for place, i in enumerate(instance.problem.topological_order)}
        self.operations = sorted(((i, m) for i in instance.blocks for m in range(micro_batches)),
                                 key=lambda op: (op[1], rank[op[0]]))  # such that dependencies go forward
        self.number = {op: n for n, op in enumerate(self.operations)}
        self.model = cp_model.CpModel()
        last = len(self.operations) - 1
        self.place = [self.model.new_int_var(0, last, f"place {block} {m}") for block, m in self.operations]
        self._after = [0] * len(self.operations)  # bit j of after[i]: i precedes j
        self._precede(micro_batches)
        self._order: dict[tuple[int, int], cp_model.IntVar] = {}
        self._excess: dict[int, cp_model.IntVar] = {}
        for device, capacity in enumerate(instance.capacity):
            if capacity is not None and instance.limited(device):
                level: cp_model.LinearExpr | int = capacity - (kept or {}).get(device, 0)
                if more:
                    most = micro_batches * sum(instance.take[device].values()) + (kept or {}).get(device, 0)
                    self._excess[device] = self.model.new_int_var(0, most, f"excess {device}")
                    level = level + self._excess[device]
                self._limit_memory(device, level)

    def least_excess(self, budget: Budget, deterministic: float) -> Excess | None:
        """The least additional memory, over all devices, with which everything fits; None if nothing is found."""
        if not self._excess:
            return Excess({}, tuple(self.operations), True)
        self.model.minimize(cp_model.LinearExpr.sum(list(self._excess.values())))
        outcome = run(self.model, budget, deterministic=deterministic, workers=1)
        if not outcome.found:
            return None
        missing = {device: value for device, variable in self._excess.items()
                   if (value := outcome.solver.value(variable))}
        return Excess(missing, self.read(outcome.solver), outcome.optimal)

    def read(self, solver: cp_model.CpSolver) -> tuple[Op, ...]:
        """The operations in the order of their places."""
        ranked = sorted(range(len(self.operations)), key=lambda n: (solver.value(self.place[n]), n))
        return tuple(self.operations[n] for n in ranked)

    def _precede(self, micro_batches: int) -> None:
        edges = {(self.number[block, m], self.number[block, m + 1])
                 for block in self.instance.blocks for m in range(micro_batches - 1)}
        edges |= {(self.number[arc.source, m], self.number[arc.target, m + arc.distance])
                  for arc in self.instance.arcs for m in range(micro_batches - arc.distance)}
        for i, j in sorted(edges, reverse=True):
            self._after[i] |= self._after[j] | 1 << j
            self.model.add(self.place[j] >= self.place[i] + 1)

    def _is_before(self, i: int, j: int) -> cp_model.IntVar | bool:
        if self._after[i] >> j & 1:
            return True
        if self._after[j] >> i & 1:
            return False
        pair = (min(i, j), max(i, j))
        if pair not in self._order:
            first, second = (self.place[n] for n in pair)
            self._order[pair] = literal = self.model.new_bool_var(f"order {pair[0]} {pair[1]}")
            self.model.add(second >= first + 1).only_enforce_if(literal)
            self.model.add(first >= second + 1).only_enforce_if(~literal)
        return self._order[pair] if i < j else self._order[pair].negated()  # type: ignore[return-value]

    def _limit_memory(self, device: int, room: cp_model.LinearExpr | int) -> None:
        """Every operation that takes memory on the device finds ``room`` for it, on top of the memory occupied."""
        take, change = self.instance.take[device], self.instance.change[device]
        changing = [n for n, (block, _) in enumerate(self.operations) if change.get(block)]
        for j, (block, _) in enumerate(self.operations):
            if take.get(block, 0) <= 0:
                continue
            needed = take[block]
            literals: list[cp_model.IntVar] = []
            weights: list[int] = []
            for i in changing:
                before = self._is_before(i, j) if i != j else False
                if before is True:
                    needed += change[self.operations[i][0]]
                elif before is not False:
                    literals.append(before)
                    weights.append(change[self.operations[i][0]])
            self.model.add(cp_model.LinearExpr.weighted_sum(literals, weights) + needed <= room)
