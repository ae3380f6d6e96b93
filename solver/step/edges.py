"""Phase 2: warm-up and cool-down around a repetend, for any number of micro-batches.

Repeating a periodic schedule for micro-batches 0..N-1 only is a schedule: what lies before the first whole period is
its warm-up, what lies after the last its cool-down, and with fewer micro-batches around nobody needs more
memory. Both edges are then ordered anew by :mod:`weft.solver.step.order_model`. They do not depend on N once there is a
whole period between them, so they are solved on a short schedule and the periods in between are put in afterwards.

Edges that cannot lead to a makespan as short as wanted are not ordered (:func:`least_around`). Whatever they are, a
device has run its warm-up before its first whole period, one operation at a time and each not before its head, and its
cool-down, mirrored, after its last one; and between them the order, and so the longest path, is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from weft.solver.bounds.heads import one_machine
from weft.solver.cpsat.budget import Budget
from weft.solver.period.periodic import Periodic, repeat, rows_by_period
from weft.solver.pools import PooledOrders, Wait
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.step.order_model import Improvement, Stretch, reorder
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders


@dataclass(frozen=True)
class EdgedRepetend:
    """A repetend with its edges: the first ``edge`` whole periods belong to the warm-up, the last to the cool-down.

    ``orders`` are device orders for ``micro_batches``; :meth:`unrolled` stretches them to more.
    """

    found: Periodic
    edge: int
    micro_batches: int
    orders: Orders

    def unrolled(self, micro_batches: int) -> Orders:
        """Device orders for more micro-batches (by whole periods): periods put in before the cool-down."""
        extra = micro_batches - self.micro_batches
        if extra == 0:
            return self.orders
        middle = repeat(self.found, micro_batches)
        _, cool = _stretches(self.found, self.micro_batches, self.edge)
        rows = []
        for row, (start, _), longer, on in zip(self.orders, cool, middle, self.found.instance.blocks_on, strict=True):
            periods = longer[start:start + extra // self.found.micro_batches_per_period * len(on)]
            rows.append([*row[:start], *periods, *((block, m + extra) for block, m in row[start:])])
        if isinstance(self.orders, PooledOrders) and isinstance(middle, PooledOrders):
            return PooledOrders(rows, self._waits(extra, [start for start, _ in cool], middle, rows))
        return rows

    def _waits(self, extra: int, starts: Sequence[int], middle: PooledOrders, rows: Orders) -> Iterator[Wait]:
        """What waits for the memory of what: before the periods put in, and behind them, as without them; in them as in
        the steady state."""
        assert isinstance(self.orders, PooledOrders)
        behind = {op for row, start in zip(self.orders, starts, strict=True) for op in row[start:]}
        inside = {op for row, longer, start in zip(self.orders, rows, starts, strict=True)
                  for op in longer[start:len(longer) - len(row) + start]}
        for giver, taker in self.orders.waits:
            by = extra if taker in behind else 0
            yield (giver[0], giver[1] + by), (taker[0], taker[1] + by)
        for giver, taker in middle.waits:
            if taker in inside:
                yield giver, taker


def complete(
    instance: TickProblem,
    found: Periodic,
    micro_batches: int,
    budget: Budget,
    *,
    edge: int = 0,
    deterministic: float = float("inf"),
    order: Callable[..., Improvement] = reorder,
) -> EdgedRepetend | None:
    """``found`` with optimised edges for ``micro_batches``; None if they leave no whole period between them.

    ``instance`` is the problem's own, also where ``found`` has several copies of it. ``order`` is what orders an edge
    anew, for whatever is searched for.
    """
    whole = micro_batches // found.micro_batches_per_period
    short = min(whole, found.depth + 2 * edge + 4)
    if short - found.depth < 2 * edge + 1:
        return None
    count = micro_batches - (whole - short) * found.micro_batches_per_period
    orders: Orders = repeat(found, count)
    warm, cool = _stretches(found, count, edge)
    for stretch in (warm, cool):
        if any(b > a for a, b in stretch):
            better = order(FixedOrder(instance, count, orders), stretch, budget, deterministic=deterministic)
            orders = better.orders or orders
    return EdgedRepetend(found, edge, count, orders)


def least_around(instance: TickProblem, found: Periodic, micro_batches: int, edge: int) -> int:
    """However ``edge`` periods around ``found`` are ordered, the makespan is no less, in ticks; there is a whole period
    between them."""
    orders, durations = repeat(found, micro_batches), instance.durations
    cuts = [(a, b) for (_, a), (b, _) in zip(*_stretches(found, micro_batches, edge), strict=True)]
    loose = {op for row, (a, b) in zip(orders, cuts, strict=True) for op in (*row[:a], *row[b:])}
    rows = [(row[:a], row[a:b], row[b:]) for row, (a, b) in zip(orders, cuts, strict=True)]
    waits = [wait for warm, middle, cool in rows for wait in (*((op, middle[0]) for op in warm),
                                                             *((middle[-1], op) for op in cool))]
    waits += [((block, m), (block, m + 1)) for block in instance.blocks for m in range(micro_batches - 1)]
    order = PooledOrders([*(row for _, row, _ in rows), *([op] for op in sorted(loose))], waits)
    fixed = FixedOrder(instance, micro_batches, order)
    head = {middle[0]: one_machine([(fixed.start[op], durations[op[0]], 0) for op in warm]) for warm, middle, _ in rows
            if middle}
    for node in fixed.in_order:
        for later, distance in fixed.follow(node):
            head[later] = max(head.get(later, 0), head.get(node, 0) + distance)
    return max(head.get(middle[-1], 0) + durations[middle[-1][0]] + one_machine(
        [(fixed.tail[op] - durations[op[0]], durations[op[0]], 0) for op in cool])
        for _, middle, cool in rows if middle)


def _stretches(found: Periodic, micro_batches: int, edge: int) -> tuple[Stretch, Stretch]:
    """Warm-up and cool-down of the repeated schedule: the periods before ``depth + edge``, and the last ``edge`` whole
    ones with what follows them."""
    warm, cool = [], []
    last = micro_batches // found.micro_batches_per_period - edge
    for row in rows_by_period(found, micro_batches):
        warm.append((0, sum(period < found.depth + edge for _, period in row)))
        cool.append((sum(period < last for _, period in row), len(row)))
    return warm, cool
