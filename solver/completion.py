"""Phase 2: warm-up and cool-down around a repetend, for any number of micro-batches.

Repeating a periodic schedule for micro-batches 0..N-1 only is a schedule: what lies before the first whole period is
its warm-up, what lies after the last its cool-down, and with fewer micro-batches around nobody needs more
memory. Both edges are then ordered anew by :mod:`solver.finite`. They do not depend on N once there is a whole
period between them, so they are solved on a short schedule and the periods in between are put in afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.cpsat import Budget
from solver.cyclic import Periodic
from solver.finite import Stretch, reorder
from solver.instance import Instance
from solver.timing import Orders

__all__ = ["Completion", "complete", "repeat"]


def repeat(found: Periodic, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Device orders of ``found`` repeated for micro-batches 0..N-1 and no others."""
    instance = found.instance
    lags = [found.lag(i) for i in instance.blocks]
    rows = []
    for on in instance.blocks_on:
        ring = sorted(on, key=found.offset)
        rows.append([(i, turn - lags[i]) for turn in range(micro_batches + found.depth) for i in ring
                     if 0 <= turn - lags[i] < micro_batches])
    return rows


@dataclass(frozen=True)
class Completion:
    """A repetend with its edges: the first ``edge`` whole periods belong to the warm-up, the last to the cool-down.

    ``orders`` are device orders for ``micro_batches``; :meth:`unrolled` stretches them to more.
    """

    found: Periodic
    edge: int
    micro_batches: int
    orders: Orders

    def unrolled(self, micro_batches: int) -> Orders:
        """Device orders for at least as many micro-batches: whole periods put in before the cool-down."""
        extra = micro_batches - self.micro_batches
        if extra == 0:
            return self.orders
        middle = repeat(self.found, micro_batches)
        rows = []
        for device, row in enumerate(self.orders):
            _, cool = _stretches(self.found, self.micro_batches, self.edge)
            start, _ = cool[device]
            periods = middle[device][start:start + extra * len(self.found.instance.blocks_on[device])]
            rows.append([*row[:start], *periods, *((block, m + extra) for block, m in row[start:])])
        return rows


def complete(
    instance: Instance,
    found: Periodic,
    micro_batches: int,
    budget: Budget,
    *,
    edge: int = 0,
    deterministic: float = float("inf"),
) -> Completion | None:
    """``found`` with optimised edges for ``micro_batches``; None if they leave no whole period between them."""
    short = min(micro_batches, found.depth + 2 * edge + 4)
    if short - found.depth < 2 * edge + 1:
        return None
    orders: Orders = repeat(found, short)
    warm, cool = _stretches(found, short, edge)
    for stretch in (warm, cool):
        if any(b > a for a, b in stretch):
            better = reorder(instance, short, orders, stretch, budget, deterministic=deterministic)
            orders = better.orders or orders
    return Completion(found, edge, short, orders)


def _stretches(found: Periodic, micro_batches: int, edge: int) -> tuple[Stretch, Stretch]:
    """Warm-up and cool-down of the repeated schedule: the periods before ``depth + edge`` and from ``N - edge`` on."""
    warm, cool = [], []
    for on in found.instance.blocks_on:
        lags = [found.lag(i) for i in on]
        total = micro_batches * len(on)
        first = sum(max(0, found.depth + edge - lag) for lag in lags)
        last = sum(max(0, micro_batches - edge - lag) for lag in lags)
        warm.append((0, first))
        cool.append((last, total))
    return warm, cool
