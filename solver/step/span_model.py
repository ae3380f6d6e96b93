"""A stretch of the schedule ordered anew for a smaller span: is there an order whose span is at most T?

The order model with T given in place of an objective. When a device or link begins a step and when it ends it are
variables here, T apart at most (:mod:`weft.solver.relations.spans`). So nothing has a known time: the operations before
and after the stretch keep their order and get starts like all others, which adds precedences and no Booleans. As T is
no variable, an order is refuted by a cycle of constant distances, which CP-SAT sees at once; with T as its objective it
would push starts on round the cycle tick by tick.

*Any T, any times.* A T = a / b is a whole number of ticks that are b times finer, and difference constraints with whole
numbers have whole solutions if any. So the model in these ticks decides T for all schedules.

*Steps of T.* The least span of an order is a fraction whose denominator is at most the number M of machines, so between
a known span a / b and the next smaller one lies at least 1 / (b M): if a / b - 1 / (b M) is refuted, a / b is least.
That is asked first. What is found is timed for its order, often far below; then the middle to the bound is asked, and
where nothing is said the next middle, which may raise the bound.

*Mixed pools.* A device and its lanes whose memory hangs on times are busy as one. Orders with waits are difference
constraints like all others, and all times that keep them fit (:mod:`weft.solver.pools`), so whole times decide T here
too; where something may be given before it was taken that is not so, and nothing is proven.

*Nothing is left out.* Every schedule of a span has one of the same order and span that ends within the length of all
operations and transfers one after another: the earliest starts are longest paths, which meet each of them once at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.cpsat.solve import Attempt, confirmed, race
from weft.solver.late import cp_model
from weft.solver.pools import busy_as_one
from weft.solver.relations.fixed_order import FixedOrder, Op
from weft.solver.relations.implied_order import Order
from weft.solver.relations.min_dist import pools_take_first
from weft.solver.relations.spans import Machines, Spans, least_span
from weft.solver.step.order_model import MOST_POOLED, Improvement, OrderModel, Stretch
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

#: No finer than that many ticks in a step: CP-SAT adds up such numbers.
_MOST_TICKS = 2**48
#: Of what is left of the effort a question may take that may end the search, and one that may only raise the bound.
_LAST, _MIDDLE = 0.6, 0.3


def reorder_for_span(
    known: FixedOrder,
    stretch: Stretch,
    budget: Budget,
    *,
    bound: int | Fraction = 0,
    deterministic: float = float("inf"),
    implied: Order | None = None,
) -> Improvement:
    """Order the free operations anew for a smaller span; arguments are those of
    :func:`weft.solver.step.order_model.reorder`. What the answer calls its makespan is the span, and its bound is one
    on the spans that reordering this stretch can reach."""
    lengths = {id(row): b - a for row, (a, b) in zip(known.orders, stretch, strict=True)}
    span, orders, instance = least_span(known).span, known.orders, known.instance
    if instance.mixed_pools and len(known.start) > MOST_POOLED:
        return Improvement(None, span, min(bound, span))
    search = _Search(instance, known.micro_batches, stretch, implied, len(Machines(known).first), orders, span,
                     Fraction(bound))
    if budget.suffices(sum(length * (length - 1) // 2 for length in lengths.values()) + sum(map(len, orders))):
        search.close(budget.slice(deterministic))
    proven = search.bound if pools_take_first(instance) else bound
    return Improvement(None if search.orders is orders else search.orders, search.span, min(proven, search.span))


@dataclass
class _Search:
    """The least span that reordering a stretch can reach: ``orders`` have ``span``, and none is below ``bound``."""

    instance: TickProblem
    micro_batches: int
    stretch: Stretch
    implied: Order | None
    machines: int
    orders: Orders
    span: Fraction
    bound: Fraction

    def close(self, time: Slice) -> None:
        """Lower the span and raise the bound until they meet or ``time`` is over."""
        middle = False
        while self.bound < self.span and not time.spent:
            below = self.span - Fraction(1, self.span.denominator * self.machines)
            asked = Fraction(math.floor((self.span + self.bound) / 2)) if middle else below
            if not self.bound <= asked < below:
                asked = below
            said = self._ask(asked, time.at_most(time.left * (_LAST if asked == below else _MIDDLE)))
            if said is None and asked == below and middle:
                return
            middle = said is not False  # go on halving after a better order, or where the last question stays open
            if said is False:
                self.bound = self.span if asked == below else asked

    def _ask(self, span: Fraction, time: Slice) -> bool | None:
        """Whether there is an order with at most this ``span``, which is kept; ``None`` where nothing is said."""
        finer = self.instance.refined(span.denominator)
        if self.micro_batches * (sum(finer.durations) + sum(arc.lag for arc in finer.arcs)) > _MOST_TICKS:
            return None
        model = _SpanModel(FixedOrder(finer, self.micro_batches, self.orders), self.stretch,
                           int(span * span.denominator), self.implied)
        attempt = Attempt(model.model, time.left, relaxation=False, precedences=False)
        outcome = race([attempt], time.budget)[0]
        if all((a, b) == (0, len(row)) for row, (a, b) in zip(self.orders, self.stretch, strict=True)):
            outcome = confirmed(attempt, outcome, time.budget)  # it becomes a bound on the problem
        if outcome.found:
            self.orders = model.read(outcome.solver)
            self.span = least_span(FixedOrder(self.instance, self.micro_batches, self.orders)).span
        return True if outcome.found else False if outcome.infeasible else None


class _SpanModel(OrderModel):
    """All operations have starts; what is not in the stretch keeps its place. The span is at most ``bound``."""

    def __init__(self, fixed: FixedOrder, stretch: Stretch, bound: int, implied: Order | None) -> None:
        super().__init__(fixed, stretch, bound, implied)
        everything = (1 << len(self.free)) - 1
        if self.free and self.after[0] | 1 == everything:  # nothing begins before it, so it may begin at 0
            self.model.add(self.start[0] == 0)

    def _divide(self) -> None:
        self.earlier, self.later = set(), set()
        self.free = self._ranked(self.fixed.start)
        spans = Spans(self.fixed)
        self._known_starts = spans.starts(Fraction(math.ceil(spans.least())))
        sent = sum(arc.lag for arc in self.instance.arcs)
        self.latest = self.fixed.micro_batches * (sum(self.instance.durations) + sent)
        #: Per device, the operations that may be its first, and its last.
        self._first = [set(row[:b] if not a else ()) or set(row[:1])
                       for row, (a, b) in zip(self.orders, self.stretch, strict=True)]
        self._last = [set(row[a:] if b == len(row) else ()) or set(row[-1:])
                      for row, (a, b) in zip(self.orders, self.stretch, strict=True)]

    def _aim(self, bound: int) -> None:
        self._span = bound
        self._busy: dict[object, tuple[cp_model.IntVar, cp_model.IntVar]] = {}
        self._pool = busy_as_one(self.instance.problem)

    def _busy_of(self, machine: tuple[str, int]) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        """When a device, a device with its lanes, or a link begins, and ends."""
        if machine not in self._busy:
            begin = self.model.new_int_var(0, self.latest, f"begin {machine}")
            end = self.model.new_int_var(0, self.latest, f"end {machine}")
            self.model.add(end <= begin + self._span)
            self._busy[machine] = begin, end
        return self._busy[machine]

    def _precede_by_order(self) -> None:
        self.edges += self._order_around()

    def hint(self, op: Op) -> int:
        return int(self._known_starts[op])

    def _limit_start(self, n: int, start: cp_model.IntVar) -> None:
        op = self.free[n]
        for device in self.instance.problem.blocks[op[0]].devices:
            pool = self._pool[device]
            begin, end = self._busy_of(("device", device) if pool is None else ("pool", pool))
            if op in self._first[device]:
                self.model.add(begin <= start)
            if op in self._last[device]:
                self.model.add(end >= start + self.instance.durations[op[0]])

    def _limit_transfer(self, link: int, begin: cp_model.IntVar, lag: int) -> None:
        first, last = self._busy_of(("link", link))
        self.model.add(first <= begin)
        self.model.add(last >= begin + lag)
