"""The least span of a schedule whose device orders are fixed, and the times that have it: exact.

The *span* of a step is how long a device, or a link, is busy with it at most, from the start of its first operation
(transfer) to the end of its last: the next step can begin so much later (:mod:`weft.solver.judge.spans`).

*Argument.* With orders fixed, starts t are held by t_j >= t_i + d_i (+ lag) along the arcs of a directed graph without
circles. "Machine r is busy for at most T" is one constraint more, back from its last operation to its first:
t_first(r) >= t_last(r) + d_last(r) - T. Such difference constraints have a solution exactly if no cycle has a positive
weight. Every cycle goes through k >= 1 of these arcs back, and from the first operation of one machine to the last of
the next along the orders, so its weight is a sum of k longest paths W[r, s], from the start of first(r) to the end of
last(s), less k T. The least T is thus the largest mean of W over the cycles among the machines: a fraction whose
denominator is at most the number of machines. W[r, r] alone says that no machine's span is less than the longest way
from its first operation to its last; two machines that wait for each other can need more than either.

When machines begin is then a longest path among them, by W - T and by what their first operations wait for; everything
else starts as early as that allows, which is earliest of all schedules with this order and span.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checkpoint
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.timing import Begins

__all__ = ["Machines", "Span", "least_span"]

#: No path: so little that no sum of times makes it one.
_NONE = -(1 << 62)
#: Longer paths than this are paths.
_SOME = -(1 << 61)

_Ticks = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """The least ``span`` of an order, in ticks, and when its devices and links ``begin``, in the problem's time
    unit."""

    span: Fraction
    begins: Begins


class Machines:
    """The devices and links of a fixed order that do anything: ``first`` and ``last``, their operations or transfers.

    Devices with the same first and the same last operation count once.
    """

    def __init__(self, fixed: FixedOrder) -> None:
        rows = [[row[0], row[-1]] for row in fixed.orders if row]
        for link in range(len(fixed.instance.problem.links)):
            queue = fixed.queue(link)
            rows += [[queue[0], queue[-1]]] if queue else []
        ends = list(dict.fromkeys((first, last) for first, last in rows))
        self.first = [first for first, _ in ends]
        self.last = [last for _, last in ends]

    def paths(self, fixed: FixedOrder) -> tuple[_Ticks, _Ticks]:
        """Longest paths from the start of the first operation of machine r (row) to the start of the first of machine
        s (column), and to the end of its last; very negative where there is none."""
        count = len(self.first)
        to_first, to_last = np.full((2, count, count), _NONE, dtype=np.int64)
        begin: dict[tuple[int, int], list[int]] = {}
        end: dict[tuple[int, int], list[int]] = {}
        for of, nodes in ((begin, self.first), (end, self.last)):
            for machine, node in enumerate(nodes):
                of.setdefault(node, []).append(machine)
        reached: dict[tuple[int, int], _Ticks] = {}
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


def least_span(fixed: FixedOrder) -> Span:
    """The least span that the device orders of ``fixed`` allow, exactly."""
    machines = Machines(fixed)
    to_first, to_last = machines.paths(fixed)
    waits = [Constraint(int(r), int(s), int(to_last[r, s]), 1) for r, s in np.argwhere(to_last > _SOME)]
    waits += [Constraint(int(r), int(s), int(to_first[r, s]), 0) for r, s in np.argwhere(to_first > _SOME) if r != s]
    span = Fraction(int(to_last.diagonal().max(initial=0)))
    while True:
        begin, cycle = longest_paths_or_cycle(len(machines.first), waits, span)
        if cycle is None:
            break
        span = ratio(cycle)
    return Span(span, _begins(fixed, dict(zip(machines.first, begin, strict=True))))


def _begins(fixed: FixedOrder, at: dict[tuple[int, int], Fraction]) -> Begins:
    instance = fixed.instance
    links = {}
    for number, link in enumerate(instance.problem.links):
        queue = fixed.queue(number)
        if queue:
            links[link.name] = instance.time(at[queue[0]])
    return Begins([instance.time(at[row[0]]) if row else 0.0 for row in fixed.orders], links)
