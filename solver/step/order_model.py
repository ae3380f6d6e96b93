"""The finite schedule: a stretch of it freed and ordered anew by CP-SAT, what comes before and after kept in order.

Each device's row of operations is cut in three: *earlier*, *free*, *later*. Earlier operations keep their order, so
their times are known. Later ones keep theirs, so the longest path from each to the end of the schedule (its *tail*) is
known, and the makespan is exactly the largest of start + tail over the free operations and of what joins earlier and
later ones directly. With everything free this solves the problem whole; with the first or the last periods of an
unrolled repetend free it is the warm-up or the cool-down; with a stretch in between, a step of a large-neighbourhood
search.

* Free operations of one block run in micro-batch order (exchanging identical micro-batches changes nothing).
* Two free operations of one device that no chain of dependencies orders get a Boolean.
* Memory when a taking operation j starts: the level the earlier ones leave, plus what j takes, plus change_i [i before
  j] over the free ones. Later operations see the same level as before.
* What memory makes precede what (:mod:`weft.solver.relations.implied_order`) adds nothing but is seen sooner.
* A mixed pool (:mod:`weft.solver.pools`) hangs on times: for a taking operation j and every other i of its pool, a
  Boolean may say that i has not started by j's start (it then starts later by a tick or more), and one that i has
  ended; else i counts as started and not ended. Where two share an engine their order says both. What earlier and later
  operations hold beside free ones hangs on their times too: so there they have starts like the free ones, and
  precedences keep their order. Whole ticks lose no schedule, as earliest times under orders and waits are whole, if
  what is given was taken first (:func:`~weft.solver.relations.min_dist.pools_take_first`); without that nothing is
  proven here.
* Transfers on a link follow the order of their producers on its source device, which the same Booleans decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

from weft.solver.control.clock import checked
from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.late import cp_model
from weft.solver.relations.fixed_order import FixedOrder, Op
from weft.solver.relations.implied_order import Order
from weft.solver.relations.min_dist import pools_take_first
from weft.solver.relations.pool_pass import with_waits
from weft.solver.timing import Orders

#: Up to so many operations, all with starts where lanes share a memory, a stretch of them is ordered anew.
MOST_POOLED = 400
#: Per device, the first free position of its row and the first later one.
Stretch: TypeAlias = Sequence[tuple[int, int]]
#: What is asked of two free operations, by their numbers.
_Literals: TypeAlias = "dict[tuple[int, int], cp_model.IntVar | bool]"


@dataclass(frozen=True)
class Improvement:
    """``orders``: better device orders, where found, with their ``makespan`` in ticks (or their span, where that is the
    objective). ``bound``: the proven least that reordering this stretch can reach."""

    orders: Orders | None
    makespan: int | Fraction
    bound: int | Fraction


def reorder(
    known: FixedOrder,
    stretch: Stretch,
    budget: Budget,
    *,
    bound: int = 0,
    deterministic: float = float("inf"),
    implied: Order | None = None,
    relaxation: bool = True,
) -> Improvement:
    """Order the free operations of ``known``, a feasible order, anew for a smaller makespan.

    Earlier operations must depend on earlier ones only; later ones must not precede free ones (true for stretches that
    are contiguous in time or in periods). ``bound``: a known lower bound; ``implied``: what must precede what in every
    schedule. Without ``relaxation`` CP-SAT keeps no linear one. Of a long schedule with pools only the whole is taken.
    """
    current, instance = known.makespan, known.instance
    is_part = any(part != (0, len(row)) for row, part in zip(known.orders, stretch, strict=True))
    work = {id(row): (b - a) * (b - a - 1) // 2 for row, (a, b) in zip(known.orders, stretch, strict=True)}
    if (is_part and instance.mixed_pools and len(known.start) > MOST_POOLED) or not budget.suffices(sum(work.values())):
        return Improvement(None, current, bound)
    model = OrderModel(known, stretch, bound, implied)
    if current <= bound or not model.free:
        return Improvement(None, current, min(bound, current))
    outcome = run(model.model, budget, deterministic=deterministic, workers=1, relaxation=relaxation)
    if outcome.infeasible:
        raise AssertionError("the known schedule does not satisfy its own model")
    if not outcome.found:
        return Improvement(None, current, bound)
    proven = max(bound, round(outcome.solver.best_objective_bound)) if pools_take_first(instance) else bound
    makespan = round(outcome.solver.objective_value)
    if makespan >= current:
        return Improvement(None, current, proven)
    return Improvement(model.read(outcome.solver), makespan, proven)


class OrderModel:
    """The model of one stretch. ``free``: the operations that have a start in it. ``latest``: by when all is over; by
    default as soon as in the order that is ``fixed``."""

    def __init__(self, fixed: FixedOrder, stretch: Stretch, bound: int, implied: Order | None,
                 latest: int | None = None) -> None:
        self.fixed, self.instance, self.orders = fixed, fixed.instance, fixed.orders
        self.stretch, self.implied = stretch, implied
        self.latest = self.fixed.makespan if latest is None else latest
        self._divide()
        self.number = {op: n for n, op in enumerate(self.free)}
        self.model = cp_model.CpModel()
        self._aim(bound)
        self._precede()
        self._make_starts()
        self._order: dict[tuple[int, int], cp_model.IntVar] = {}
        self._order_devices()
        self._carry_transfers()
        self._limit_memory()
        self._limit_pools()

    def _divide(self) -> None:
        """Divide the operations into earlier, free and later ones."""
        if self.instance.mixed_pools:  # all have starts, and what is not free keeps its place
            self.earlier, self.later = set[Op](), set[Op]()
            self.free = self._ranked(self.fixed.start)
            return
        self.earlier = {op for row, (a, _) in zip(self.orders, self.stretch, strict=True) for op in row[:a]}
        self.later = {op for row, (_, b) in zip(self.orders, self.stretch, strict=True) for op in row[b:]}
        free = {op for row, (a, b) in zip(self.orders, self.stretch, strict=True) for op in row[a:b]}
        self.free = self._ranked(free)

    def _ranked(self, ops: Iterable[Op]) -> list[Op]:
        return sorted(ops, key=lambda op: (self.fixed.start[op], op))

    def _aim(self, bound: int) -> None:
        """The objective, which is at least ``bound``."""
        direct = self.fixed.longest_between(self.earlier, self.later)
        self.makespan = self.model.new_int_var(max(bound, direct), self.latest, "makespan")
        self.model.minimize(self.makespan)

    def read(self, solver: cp_model.CpSolver) -> Orders:
        starts = [solver.value(start) for start in self.start]
        if self.instance.mixed_pools:  # all have starts
            at = dict(zip(self.free, starts, strict=True))
            return with_waits(self.instance, [sorted(row, key=at.__getitem__) for row in self.orders], at)
        return [[*row[:a], *sorted(row[a:b], key=lambda op: starts[self.number[op]]), *row[b:]]
                for row, (a, b) in zip(self.orders, self.stretch, strict=True)]

    def _precede(self) -> None:
        """Which free operations every schedule runs before which: dependencies and micro-batch order, closed."""
        self.edges: list[tuple[int, int, int]] = []  # from, to, least distance between starts
        for op in self.free:
            block, m = op
            duration = self.instance.durations[block]
            if (block, m + 1) in self.number:
                self.edges.append((self.number[op], self.number[block, m + 1], duration))
            for arc in self.fixed.arcs_from[block]:
                consumer = (arc.target, m + arc.distance)
                if consumer in self.number:
                    self.edges.append((self.number[op], self.number[consumer], duration + arc.lag))
        self._precede_by_memory()
        self._precede_by_order()
        self._close()
        self.head = [max([0, *(self.fixed.arrivals(op, self.earlier))]) for op in self.free]
        #: The longest path from each start to the end.
        self.tail = [self.instance.durations[op[0]] + max([0, *self.fixed.departures(op, self.later)])
                     for op in self.free]
        self.to_later = list(self.tail)
        for i, j, distance in sorted(self.edges):
            self.head[j] = max(self.head[j], self.head[i] + distance)
        for i, j, distance in sorted(self.edges, reverse=True):
            self.tail[i] = max(self.tail[i], distance + self.tail[j])

    def _close(self) -> None:
        self.after = [0] * len(self.free)  # bit j of after[i]: i precedes j
        for i, j, _ in checked(sorted(self.edges, reverse=True), 256):  # numbers follow start times
            self.after[i] |= self.after[j] | 1 << j

    def _precede_by_memory(self) -> None:
        if self.implied is None:
            return
        self._close()  # by what is known without memory
        for i, j in sorted({(i, j) for on in self.instance.blocks_on for i in on for j in on if i != j}):
            distance = int(self.implied[i, j])
            for m in range(self.fixed.micro_batches - distance):
                one, other = self.number.get((i, m)), self.number.get((j, m + distance))
                if one is not None and other is not None and (distance or not self.after[one] >> other & 1):
                    self.edges.append((one, other, self.instance.durations[i]))

    def _precede_by_order(self) -> None:
        """What else is known of what runs before what: nothing, where all that have starts are to be ordered."""
        if self.instance.mixed_pools:
            self.edges += self._order_around()

    def _order_around(self) -> Iterator[tuple[int, int, int]]:
        """The order of all operations around the free stretch."""
        for row, (a, b) in zip(self.orders, self.stretch, strict=True):
            free = row[a:b]
            pairs = [*pairwise(row[:a]), *pairwise(row[b:])]
            if free:
                pairs += [(before, op) for before in row[max(a - 1, 0):a] for op in free]
                pairs += [(op, after) for after in row[b:b + 1] for op in free]
            elif 0 < a < len(row):
                pairs.append((row[a - 1], row[a]))
            for one, other in pairs:
                yield self.number[one], self.number[other], self.instance.durations[one[0]]

    def _make_starts(self) -> None:
        self.start: list[cp_model.IntVar] = []
        for n, op in enumerate(self.free):
            name = f"start {self.instance.problem.blocks[op[0]].name} {op[1]}"
            start = self.model.new_int_var(self.head[n], max(self.head[n], self.latest - self.tail[n]), name)
            self.model.add_hint(start, self.hint(op))
            self._limit_start(n, start)
            self.start.append(start)
        for i, j, distance in self.edges:
            self.model.add(self.start[j] >= self.start[i] + distance)

    def hint(self, op: Op) -> int:
        """A start of ``op`` in the known schedule."""
        return self.fixed.start[op]

    def _limit_start(self, n: int, start: cp_model.IntVar) -> None:
        """Relate the start of free operation ``n`` to the objective."""
        self.model.add(self.makespan >= start + self.to_later[n])

    def _is_before(self, i: int, j: int) -> cp_model.IntVar | bool:
        if self.after[i] >> j & 1:
            return True
        if self.after[j] >> i & 1:
            return False
        return self._order[i, j] if i < j else self._order[j, i].negated()  # type: ignore[return-value]

    def _order_devices(self) -> None:
        durations = [self.instance.durations[op[0]] for op in self.free]
        rows = {tuple(sorted(self.number[op] for op in row[a:b]))
                for row, (a, b) in zip(self.orders, self.stretch, strict=True)}
        for row in sorted(rows):
            for i in checked(row):
                for j in row:
                    if i < j and not self.after[i] >> j & 1 and (i, j) not in self._order:
                        literal = self.model.new_bool_var(f"order {i} {j}")
                        self._order[i, j] = literal
                        self.model.add(self.start[i] + durations[i] <= self.start[j]).only_enforce_if(literal)
                        self.model.add(self.start[j] + durations[j] <= self.start[i]).only_enforce_if(~literal)
                        self.model.add_hint(literal, self.fixed.start[self.free[i]] < self.fixed.start[self.free[j]])
            if len(row) > 1:
                self.model.add_no_overlap(
                    self.model.new_fixed_size_interval_var(self.start[i], durations[i], f"run {i}") for i in row)

    def _carry_transfers(self) -> None:
        #: Per link: producer, lag, begin.
        self.carried: dict[int, list[tuple[int, int, cp_model.IntVar]]] = {}
        for n, op in enumerate(self.free):
            for number, arc in self.fixed.linked_arcs_from[op[0]]:
                transfer = self.fixed.transfer(number, op[1])
                if arc.link is None or transfer is None:
                    continue
                consumer = (arc.target, op[1] + arc.distance)
                begin = self.model.new_int_var(0, self.latest, f"transfer {number} {op[1]}")
                self.model.add(begin >= self.start[n] + self.instance.durations[op[0]])
                self.model.add(begin >= self.fixed.link_free(arc.link, self.earlier))
                if consumer in self.number:
                    self.model.add(self.start[self.number[consumer]] >= begin + arc.lag)
                else:
                    self.model.add(self.makespan >= begin + arc.lag + self.fixed.tail[consumer])
                self._limit_transfer(arc.link, begin, arc.lag)
                for other, lag, earlier in self.carried.setdefault(arc.link, []):
                    if other == n:
                        self.model.add(begin >= earlier + lag)
                        continue
                    self._follow_on_link(other, earlier, lag, n, begin)
                    self._follow_on_link(n, begin, arc.lag, other, earlier)
                self.carried[arc.link].append((n, arc.lag, begin))

    def _limit_transfer(self, link: int, begin: cp_model.IntVar, lag: int) -> None:
        """Relate a transfer of a free operation to the objective."""
        self.model.add(self.makespan >= begin + lag + self.fixed.link_tail(link, self.later))

    def _follow_on_link(self, i: int, first: cp_model.IntVar, lag: int, j: int, second: cp_model.IntVar) -> None:
        """If i runs before j, its transfer comes first."""
        literal = self._is_before(i, j)
        if literal is not False:
            constraint = self.model.add(second >= first + lag)
            if literal is not True:
                constraint.only_enforce_if(literal)

    def _limit_memory(self) -> None:
        for device, capacity in enumerate(self.instance.capacity):
            if capacity is None or not self.instance.limited(device):
                continue
            take, change = self.instance.take[device], self.instance.change[device]
            a, b = self.stretch[device]
            level = sum(change[block] for block, _ in self.orders[device][:a])
            row = [self.number[op] for op in self.orders[device][a:b]]
            for j in (j for j in checked(row) if take[self.free[j][0]] > 0):
                self._hold([(self._is_before(i, j), change[self.free[i][0]]) for i in row
                            if i != j and change[self.free[i][0]]], capacity - level - take[self.free[j][0]])

    def _hold(self, terms: Iterable[tuple[cp_model.IntVar | bool, int]], room: int) -> None:
        """The amounts whose literals hold are at most ``room`` together."""
        literals: list[cp_model.IntVar] = []
        weights: list[int] = []
        for literal, amount in terms:
            if literal is True:
                room -= amount
            elif literal is not False:
                literals.append(literal)
                weights.append(amount)
        self.model.add(cp_model.LinearExpr.weighted_sum(literals, weights) <= room)

    def _limit_pools(self) -> None:
        """Operations that take memory shared by lanes find room for it at their start."""
        engines = [set(block.devices) for block in self.instance.problem.blocks]
        started: _Literals = {}
        ended: _Literals = {}
        for pool in self.instance.mixed_pools:
            members = [n for n, op in enumerate(self.free) if op[0] in pool.take]
            for j in (j for j in checked(members) if pool.take[self.free[j][0]] > 0):
                terms: list[tuple[cp_model.IntVar | bool, int]] = []
                for i in (i for i in members if i != j):
                    block = self.free[i][0]
                    if engines[block] & engines[self.free[j][0]]:
                        terms.append((self._is_before(i, j), pool.change[block]))
                        continue
                    if pool.take[block]:
                        terms.append((self._has_started(i, j, started), pool.take[block]))
                    if pool.given(block):
                        terms.append((self._has_ended(i, j, ended), -pool.given(block)))
                self._hold(terms, pool.capacity - pool.take[self.free[j][0]])

    def _has_started(self, i: int, j: int, known: _Literals) -> cp_model.IntVar | bool:
        """Whether i may have started by j's start; if not, it starts later."""
        if self.after[i] >> j & 1 or self.after[j] >> i & 1:
            return bool(self.after[i] >> j & 1)
        if (i, j) not in known:
            known[i, j] = literal = self.model.new_bool_var(f"started {i} {j}")
            self.model.add(self.start[i] >= self.start[j] + 1).only_enforce_if(~literal)
            self.model.add_hint(literal, self.hint(self.free[i]) <= self.hint(self.free[j]))
            if (j, i) in known:  # one of the two is no later
                self.model.add_bool_or(literal, known[j, i])
        return known[i, j]

    def _has_ended(self, i: int, j: int, known: _Literals) -> cp_model.IntVar | bool:
        """Whether i has certainly ended by j's start."""
        if self.after[i] >> j & 1 or self.after[j] >> i & 1:
            return bool(self.after[i] >> j & 1)
        if (i, j) not in known:
            duration = self.instance.durations[self.free[i][0]]
            known[i, j] = literal = self.model.new_bool_var(f"ended {i} {j}")
            self.model.add(self.start[j] >= self.start[i] + duration).only_enforce_if(literal)
            self.model.add_hint(literal, self.hint(self.free[i]) + duration <= self.hint(self.free[j]))
        return known[i, j]
