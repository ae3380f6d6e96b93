"""The least span of a schedule whose device orders are fixed, and the times that have it: exact.

The *span* of a step is the longest time that a device, or a link, is busy with it, from the start of its first
operation (transfer) to the end of its last: the next step can begin so much later (:mod:`weft.solver.judge.spans`).

*Argument.* With orders fixed, starts t satisfy t_j >= t_i + d_i (+ lag) along the arcs of a directed graph without
cycles. "Machine r is busy for at most T" is one constraint more, back from its last operation to its first:
t_first(r) >= t_last(r) + d_last(r) - T. Such difference constraints have a solution exactly if no cycle has a positive
weight. Every cycle goes through k >= 1 of these arcs back, and from the first operation of one machine to the last of
the next along the orders, so its weight is a sum of k longest paths W[r, s], from the start of first(r) to the end of
last(s), less k T. The least T is thus the largest mean of W over the cycles among the machines: a fraction whose
denominator is at most the number of machines. W[r, r] alone says that no machine's span is less than the longest way
from its first operation to its last; two machines that wait for each other can need more than either.

If the level of a device and its lanes hangs on when their blocks run, they are busy from the first start on any to the
last end (:func:`weft.solver.pools.busy_as_one`): arcs lead back from the last operation of each to the first of each
other, and the rest of the argument is unchanged. Waits for memory are arcs of the graph like any others, and all times
that keep them fit (:mod:`weft.solver.pools`).

The begins of machines are then longest paths among them, by W - T and by the inputs of their first operations;
everything else starts as early as that allows, which is earliest of all schedules with this order and span.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checkpoint
from weft.solver.pools import busy_as_one
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.relations.fixed_order import FixedOrder, Node
from weft.solver.timing import Begins

__all__ = ["Machines", "Node", "LeastSpan", "Spans", "least_span"]

#: No path: so negative that no sum of times makes it one.
_NONE = -(1 << 62)
#: Values above this are paths.
_SOME = -(1 << 61)

_Ticks = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LeastSpan:
    """The least ``span`` of an order, in ticks, and the ``begin`` of its devices and links, in the problem's time
    unit."""

    span: Fraction
    begins: Begins


class Machines:
    """The devices and links with operations in a fixed order: ``first`` and ``last``, their operations or transfers.

    Devices with the same first and the same last operation count once. ``together``: for each machine, itself and those
    that are busy as one with it.
    """

    def __init__(self, fixed: FixedOrder) -> None:
        problem = fixed.instance.problem
        rows: list[tuple[Node, Node, int | None]] = [
            (row[0], row[-1], pool) for row, pool in zip(fixed.orders, busy_as_one(problem), strict=True) if row]
        for link in range(len(problem.links)):
            queue = fixed.queue(link)
            rows += [(queue[0], queue[-1], None)] if queue else []
        ends = list(dict.fromkeys(rows))
        self.first = [first for first, _, _ in ends]
        self.last = [last for _, last, _ in ends]
        pools = [pool for *_, pool in ends]
        self.together = [[s for s, other in enumerate(pools) if s == r or (pool is not None and pool == other)]
                         for r, pool in enumerate(pools)]

    def paths(self, fixed: FixedOrder) -> tuple[_Ticks, _Ticks]:
        """Longest paths from the start of the first operation of machine r (row) to the start of the first of machine s
        (column), and to the end of its last; very negative if there is none."""
        count = len(self.first)
        to_first, to_last = np.full((2, count, count), _NONE, dtype=np.int64)
        begin: dict[Node, list[int]] = {}
        end: dict[Node, list[int]] = {}
        for of, nodes in ((begin, self.first), (end, self.last)):
            for machine, node in enumerate(nodes):
                of.setdefault(node, []).append(machine)
        reached: dict[Node, _Ticks] = {}
        for number, node in enumerate(fixed.in_order):
            if not number & 1023:
                checkpoint()
            here = reached.pop(node, None)
            if node in begin:
                here = np.full(count, _NONE, dtype=np.int64) if here is None else here
                here[begin[node]] = np.maximum(here[begin[node]], 0)
                for machine in begin[node]:
                    to_first[:, machine] = here
            if here is None:
                continue
            for machine in end.get(node, ()):
                to_last[:, machine] = here + fixed.length(node)
            for after, distance in fixed.follow(node):
                there = reached.get(after)
                reached[after] = here + distance if there is None else np.maximum(there, here + distance)
        return to_first, to_last


class Spans:
    """The spans that the device orders of ``fixed`` allow, and the starts under each. Times are in ticks."""

    def __init__(self, fixed: FixedOrder) -> None:
        self.fixed = fixed
        self.machines = Machines(fixed)
        to_first, self._to_last = self.machines.paths(fixed)
        found = np.argwhere(self._to_last > _SOME).tolist()
        self._waits = [Constraint(r, first, int(self._to_last[r, s]), 1)
                       for r, s in found for first in self.machines.together[s]]
        self._waits += [Constraint(r, s, int(to_first[r, s]), 0)
                        for r, s in np.argwhere(to_first > _SOME).tolist() if r != s]

    def least(self) -> Fraction:
        """The least span."""
        span = Fraction(max((int(self._to_last[r, s]) for r, of in enumerate(self.machines.together) for s in of),
                            default=0))
        while True:
            _, cycle = longest_paths_or_cycle(len(self.machines.first), self._waits, span)
            if cycle is None:
                return span
            span = ratio(cycle)

    def begins(self, span: Fraction) -> dict[Node, Fraction]:
        """The earliest start of the first operation or transfer of every machine, with a span that is not less than the
        least; whole ticks if ``span`` is whole."""
        begins, _ = longest_paths_or_cycle(len(self.machines.first), self._waits, span)
        return dict(zip(self.machines.first, begins, strict=True))

    def times(self, span: Fraction) -> Begins:
        """The begins of all devices and links, in the problem's time unit."""
        at, fixed, instance = self.begins(span), self.fixed, self.fixed.instance
        links = {link.name: instance.time(at[queue[0]]) for number, link in enumerate(instance.problem.links)
                 if (queue := fixed.queue(number))}
        return Begins([instance.time(at[row[0]]) if row else 0.0 for row in fixed.orders], links)

    def starts(self, span: Fraction) -> dict[Node, Fraction]:
        """The same of all operations and transfers."""
        starts = self.begins(span)
        for node in self.fixed.in_order:
            at = starts[node]
            for after, distance in self.fixed.follow(node):
                starts[after] = max(starts.get(after, at), at + distance)
        return starts


def least_span(fixed: FixedOrder) -> LeastSpan:
    """The least span that the device orders of ``fixed`` allow, exactly."""
    spans = Spans(fixed)
    span = spans.least()
    return LeastSpan(span, spans.times(span))
