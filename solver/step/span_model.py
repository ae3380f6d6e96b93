"""A stretch of the schedule ordered anew for a smaller span: the order model with another objective.

When a device begins a step and when it ends it are variables here, for each device and link, and their difference is at
most the span (:mod:`weft.solver.relations.spans`). So nothing has a known time: the operations before and after the
stretch keep their order and get starts like all others, which adds precedences to the model and no Booleans.

Times are whole ticks. An order whose least span is s (a fraction with a denominator of at most the number of machines)
has whole times for the span rounded up, as difference constraints with whole numbers have whole solutions. So what is
proven of whole times, that no span is less than B, proves that every span is more than B - 1, by the fraction at least
(:func:`of_any_times`).

Every schedule of a span has one of the same order and span that ends within the length of all operations and transfers
one after another: the earliest starts are longest paths, which meet each of them once at most. So the model, which lets
nothing last longer, leaves nothing out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from ortools.sat.python import cp_model

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.relations.fixed_order import FixedOrder, Op
from weft.solver.relations.implied_order import Order
from weft.solver.relations.spans import Machines, Spans, least_span
from weft.solver.step.order_model import Improvement, OrderModel, Stretch
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

__all__ = ["of_any_times", "reorder_for_span"]

#: No finer than that many ticks in a span: CP-SAT adds up such numbers.
_MOST_TICKS = 2**44


def reorder_for_span(
    instance: TickProblem,
    micro_batches: int,
    orders: Orders,
    stretch: Stretch,
    budget: Budget,
    *,
    bound: int | Fraction = 0,
    deterministic: float = float("inf"),
    implied: Order | None = None,
) -> Improvement:
    """Order the free operations anew for a smaller span; arguments are those of
    :func:`weft.solver.step.order_model.reorder`. The bound of the answer is one on the span of any times, where all
    operations are free; else it says nothing beyond ``bound``."""
    task = _Task(micro_batches, budget, deterministic, implied)
    found = task.solved(instance, orders, stretch, math.ceil(bound))
    if not all((a, b) == (0, len(row)) for row, (a, b) in zip(orders, stretch, strict=True)):
        return replace(found, bound=bound)
    fixed = FixedOrder(instance, micro_batches, found.orders or orders)
    machines, span = len(Machines(fixed).first), least_span(fixed).span
    least = max(Fraction(bound), of_any_times(math.ceil(found.bound), machines))
    if found.bound < found.makespan or span <= least:  # open, or no fraction is left between
        return replace(found, bound=min(least, span))
    return task.settled(instance, found, fixed, machines, span, least)


def of_any_times(bound: int, machines: int) -> Fraction:
    """A bound on the span of whole times as one on that of any: of the fractions with denominators up to ``machines``
    the least that rounds up to ``bound``."""
    return Fraction(bound) if bound <= 0 else bound - 1 + Fraction(1, max(1, machines))


@dataclass(frozen=True)
class _Task:
    """What stays the same from one solve to the next."""

    micro_batches: int
    budget: Budget
    deterministic: float
    implied: Order | None

    def solved(self, instance: TickProblem, orders: Orders, stretch: Stretch, bound: int) -> Improvement:
        """The least span of whole times that reordering this stretch can reach."""
        lengths = {id(row): b - a for row, (a, b) in zip(orders, stretch, strict=True)}
        pairs = sum(length * (length - 1) // 2 for length in lengths.values())
        if not self.budget.suffices(pairs + sum(map(len, orders))):
            known = math.ceil(least_span(FixedOrder(instance, self.micro_batches, orders)).span)
            return Improvement(None, known, min(bound, known))
        model = _SpanModel(instance, self.micro_batches, orders, stretch, bound, self.implied)
        if model.known <= bound:
            return Improvement(None, model.known, model.known)
        outcome = run(model.model, self.budget, deterministic=self.deterministic, workers=1)
        if outcome.infeasible:
            raise AssertionError("the known schedule does not satisfy its own model")
        if not outcome.found:
            return Improvement(None, model.known, bound)
        proven = max(bound, round(outcome.solver.best_objective_bound))
        span = round(outcome.solver.objective_value)
        return Improvement(model.read(outcome.solver) if span < model.known else None, span, proven)

    def settled(self, instance: TickProblem, found: Improvement, fixed: FixedOrder, machines: int, span: Fraction,
                least: Fraction) -> Improvement:
        """``found``, whose least ``span`` is a / b, searched in ticks that are b x ``machines`` times finer: of the
        fractions with denominators up to ``machines``, none lies closer below a / b than one of these ticks."""
        finer = span.denominator * machines
        if span * finer > _MOST_TICKS:
            return replace(found, bound=least)
        again = self.solved(instance.refined(finer), fixed.orders, [(0, len(row)) for row in fixed.orders],
                            math.ceil(least * finer))
        if again.orders is not None:
            span = least_span(FixedOrder(instance, self.micro_batches, again.orders)).span
            return Improvement(again.orders, math.ceil(span), min(span, max(least, Fraction(again.bound - 1, finer))))
        met = again.bound >= span * finer
        return replace(found, bound=span if met else max(least, Fraction(again.bound - 1, finer)))


class _SpanModel(OrderModel):
    """All operations have starts; what is not in the stretch keeps its place. ``known``: the span, in whole ticks, of
    the orders given."""

    def __init__(self, instance: TickProblem, micro_batches: int, orders: Orders, stretch: Stretch, bound: int,
                 implied: Order | None) -> None:
        super().__init__(instance, micro_batches, orders, stretch, bound, implied)
        everything = (1 << len(self.free)) - 1
        if self.free and self.after[0] | 1 == everything:  # nothing begins before it, so it may begin at 0
            self.model.add(self.start[0] == 0)

    def _divide(self) -> None:
        self.earlier, self.later = set(), set()
        self.free = self._ranked(self.fixed.start)
        spans = Spans(self.fixed)
        self.known = math.ceil(spans.least())
        self._known_starts = spans.starts(Fraction(self.known))
        sent = sum(arc.lag for arc in self.instance.arcs)
        self.latest = self.fixed.micro_batches * (sum(self.instance.durations) + sent)
        #: Per device, the operations that may be its first, and its last.
        self._first = [set(row[:b] if not a else ()) or set(row[:1])
                       for row, (a, b) in zip(self.orders, self.stretch, strict=True)]
        self._last = [set(row[a:] if b == len(row) else ()) or set(row[-1:])
                      for row, (a, b) in zip(self.orders, self.stretch, strict=True)]

    def _aim(self, bound: int) -> None:
        self.span = self.model.new_int_var(min(bound, self.known), self.known, "span")
        self.model.minimize(self.span)
        self._busy: dict[object, tuple[cp_model.IntVar, cp_model.IntVar]] = {}

    def _busy_of(self, machine: object) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        """When a device or link begins, and ends."""
        if machine not in self._busy:
            begin = self.model.new_int_var(0, self.latest, f"begin {machine}")
            end = self.model.new_int_var(0, self.latest, f"end {machine}")
            self.model.add(end - begin <= self.span)
            self._busy[machine] = begin, end
        return self._busy[machine]

    def _precede_by_order(self) -> None:
        for row, (a, b) in zip(self.orders, self.stretch, strict=True):
            free = row[a:b]
            pairs = [*pairwise(row[:a]), *pairwise(row[b:])]
            if free:
                pairs += [(before, op) for before in row[max(a - 1, 0):a] for op in free]
                pairs += [(op, after) for after in row[b:b + 1] for op in free]
            elif 0 < a < len(row):
                pairs.append((row[a - 1], row[a]))
            self.edges += [(self.number[one], self.number[other], self.instance.durations[one[0]])
                           for one, other in pairs]

    def hint(self, op: Op) -> int:
        return int(self._known_starts[op])

    def _limit_start(self, n: int, start: cp_model.IntVar) -> None:
        op = self.free[n]
        for device in self.instance.problem.blocks[op[0]].devices:
            begin, end = self._busy_of(("device", device))
            if op in self._first[device]:
                self.model.add(begin <= start)
            if op in self._last[device]:
                self.model.add(end >= start + self.instance.durations[op[0]])

    def _limit_transfer(self, link: int, begin: cp_model.IntVar, lag: int) -> None:
        first, last = self._busy_of(("link", link))
        self.model.add(first <= begin)
        self.model.add(last >= begin + lag)
