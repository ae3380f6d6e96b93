"""Heads that a few neighbouring micro-batches force on each other, by exact search over a window of them.

Leave out all micro-batches of a schedule but some: what is left is a schedule of these, as nobody's memory holds less
than nothing. So the least start of an operation over all schedules of the window m - w + 1 .. m, each operation not
before its head, is a head again; it sees how micro-batches in flight get in each other's way, which longest
paths and single machines do not. Window after window rolls over the micro-batches; each raises the heads of micro-batch
m for the blocks that give back memory on the tightest device, as those are what later micro-batches wait for. The last
window minimises the makespan itself. Windows that look alike, but for when they begin, are solved once: where
heads have settled into a rhythm, more micro-batches cost nothing.

CP-SAT is asked for bounds; where it stops early, what it has proven is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.solver.bounds.heads import Heads, Times, laid_out, tails
from weft.solver.bounds.memory import chains_of_one
from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.late import cp_model
from weft.solver.relations.graph import barriers, graph_of, without_barriers
from weft.solver.relations.implied_order import Order, implied_order
from weft.solver.relations.min_dist import least_lifetimes
from weft.solver.ticks import TickProblem

__all__ = ["rolling_bounds"]

#: Numbers of neighbouring micro-batches that are looked at together, one after the other.
_WIDTHS = (2, 4, 6, 8)
#: Up to so many operations a window holds (two micro-batches are always looked at), and a schedule has.
_MOST_IN_WINDOW = 160
_MOST_OPERATIONS = 8000


def rolling_bounds(instance: TickProblem, micro_batches: int, budget: Budget, deterministic: float) -> Iterator[int]:
    """Rising lower bounds on the makespan, in ticks, from wider and wider windows; each step is one window or less.

    ``deterministic`` limits all of them together. A step without progress repeats the bound.
    """
    if micro_batches * len(instance.durations) > _MOST_OPERATIONS:
        return
    order = implied_order(instance, graph_of(instance), micro_batches)
    rolls = [(0, _Roll(instance, micro_batches, order))]
    barrier_blocks = barriers(instance)
    if barrier_blocks:
        blocks = order[:len(instance.durations), :len(instance.durations)]
        cut = micro_batches * sum(instance.durations[i] for i in barrier_blocks)
        rolls.insert(0, (cut, _Roll(without_barriers(instance, barrier_blocks), micro_batches, blocks)))
    time = budget.slice(deterministic)
    best = 0
    for width in _WIDTHS:
        if width > 2 and width * len(instance.durations) > _MOST_IN_WINDOW:
            return
        for cut, roll in rolls:
            left = deterministic / len(_WIDTHS) / len(rolls)
            for bound in roll.over(width, budget, left / min(micro_batches, 12)):
                best = max(best, cut + bound)
                yield best
                if time.spent:
                    return
        if width >= micro_batches:
            return


class _Roll:
    """The heads of one graph, raised by windows."""

    def __init__(self, instance: TickProblem, micro_batches: int, order: Order) -> None:
        self.instance = instance
        self.graph = graph_of(instance)
        self.order = order
        self.micro_batches = micro_batches
        self.heads = Heads(self.graph, order, micro_batches)
        self.tail: Times = tails(self.graph, order, micro_batches, micro_batches)
        lags = chains_of_one(instance)
        #: Per device with a limit: what a micro-batch holds, as (taker, giver, amount).
        self.held: dict[int, list[tuple[int, int, int]]] = {}
        fullest: list[tuple[float, int]] = []
        for device, capacity in enumerate(instance.capacity):
            lives = least_lifetimes(instance, device, lags) if capacity and instance.limited(device) else None
            if not capacity or lives is None or any(life < 0 for _, _, _, life in lives.held):
                continue
            self.held[device] = [(taker, giver, amount) for taker, giver, amount, _ in lives.held]
            self.held[device] += [(i, i, amount - max(instance.change[device][i], 0))
                                  for i, amount in instance.take[device].items()
                                  if amount > max(instance.change[device][i], 0)]
            fullest.append((sum(amount * life for _, _, amount, life in lives.held) / capacity, -device))
        tightest = -max(fullest)[1] if fullest else 0
        self.targets = [i for i, change in instance.change[tightest].items() if change < 0] if fullest else []
        self.seen: dict[tuple[int, ...], list[int]] = {}

    def over(self, width: int, budget: Budget, deterministic: float) -> Iterator[int]:
        """Roll windows of ``width`` over all micro-batches; each solve is limited to ``deterministic``."""
        for m in range(self.micro_batches):
            self.heads.raise_column(m)
            if self.targets:
                self._raise(max(0, m - width + 1), m, budget, deterministic)
                self.heads.raise_column(m)
            yield 0
        yield laid_out(self.graph, self.heads.head, self.tail)
        yield self._last(max(0, self.micro_batches - width), budget, deterministic)

    def _raise(self, first: int, last: int, budget: Budget, deterministic: float) -> None:
        """Raise the targets' heads in micro-batch ``last``."""
        head = self.heads.head
        shown = head[:, first:last + 1]
        begin = int(shown.min())
        key = (last - first, *(shown - begin).ravel().tolist())
        if key not in self.seen:
            window = _Window(self, first, last)
            self.seen[key] = [window.least(window.start[i, last - first], budget, deterministic) for i in self.targets]
        for i, least in zip(self.targets, self.seen[key], strict=True):
            head[i, last] = max(int(head[i, last]), begin + least)

    def _last(self, first: int, budget: Budget, deterministic: float) -> int:
        window = _Window(self, first, self.micro_batches - 1)
        makespan = window.model.new_int_var(0, window.latest + int(self.tail.max()) + max(self.graph.durations),
                                            "makespan")
        for (i, m), start in window.start.items():
            window.model.add(makespan >= start + self.graph.durations[i] + int(self.tail[i, first + m]))
        return window.begin + window.least(makespan, budget, 4 * deterministic)


class _Window:
    """Some neighbouring micro-batches as a scheduling problem of their own; times count from ``begin`` on."""

    def __init__(self, roll: _Roll, first: int, last: int) -> None:
        graph, instance = roll.graph, roll.instance
        head = roll.heads.head[:, first:last + 1]
        self.begin = int(head.min())
        self.model = cp_model.CpModel()
        width = last - first + 1
        # With every operation as early as the orders allow, nothing starts later than this.
        self.latest = int(head.max()) - self.begin + width * (sum(graph.durations)
                                                              + sum(wait.lag for wait in graph.waits))
        self.start = {(i, m): self.model.new_int_var(int(head[i, m]) - self.begin, self.latest, f"start {i} {m}")
                      for i in range(len(graph.durations)) for m in range(width)}
        for wait in graph.waits:
            self._follow(wait.source, wait.target, wait.distance, graph.durations[wait.source] + wait.lag, width)
        for machine in graph.machines:
            for i, j in np.argwhere(roll.order[np.ix_(machine, machine)] < width).tolist():
                source, target = machine[i], machine[j]
                self._follow(source, target, int(roll.order[source, target]), graph.durations[source], width)
            self.model.add_no_overlap(
                self.model.new_fixed_size_interval_var(self.start[i, m], graph.durations[i], f"run {i} {m}")
                for i in machine for m in range(width))
        for device, held in roll.held.items():
            intervals, amounts = [], []
            for taker, giver, amount in held:
                for m in range(width):
                    name = f"{taker} to {giver} on {device} {m}"
                    end = self.start[giver, m] + graph.durations[giver]
                    size = self.model.new_int_var(0, self.latest + graph.durations[giver], f"life {name}")
                    intervals.append(self.model.new_interval_var(self.start[taker, m], size, end, f"held {name}"))
                    amounts.append(amount)
            self.model.add_cumulative(intervals, amounts, instance.capacity[device] or 0)

    def least(self, value: cp_model.IntVar, budget: Budget, deterministic: float) -> int:
        """A lower bound on ``value`` over all schedules of the window."""
        self.model.minimize(value)
        outcome = run(self.model, budget, deterministic=deterministic, workers=1, relaxation=False)
        if outcome.infeasible:
            raise AssertionError("a few micro-batches of a feasible problem have no schedule")
        if not outcome.found:
            return 0
        return round(outcome.solver.objective_value if outcome.optimal else outcome.solver.best_objective_bound)

    def _follow(self, source: int, target: int, distance: int, apart: int, width: int) -> None:
        for m in range(width - distance):
            self.model.add(self.start[target, m + distance] >= self.start[source, m] + apart)
