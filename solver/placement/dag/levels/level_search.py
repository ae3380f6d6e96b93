"""Graphs of stages by dynamic programming over levels: exact, and quick where a graph is a few paths.

Under a limit on the load, the program of :mod:`weft.solver.placement.dag.levels.level_program` finds stages on the
devices there are, as shallow as possible, or proves that there are none. So the least largest load is found by
bisection and proven by a last run just below it. Cuts of the graph and what they need at least do not change from run
to run: they are made once, for the largest load of a first placement in a row.

After the dynamic programs of Piper (Tarnawski et al., NeurIPS 2021: ideals, one stage each) and GraphPipe (Jeon et al.,
ASPLOS 2025: series-parallel graphs by their splits); the levels are what makes it exact for graphs of stages of any
form. ``in_a_row`` is Piper's formulation: a level is one stage, connected or not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.solver.cpsat.solve import Budget
from weft.solver.placement.dag.levels.ideals import MAX_CUTS, Ideals, TooWide
from weft.solver.placement.dag.levels.level_program import Program
from weft.solver.placement.groups import Groups
from weft.solver.placement.orders.slice_order import Slicing, depth_first_order
from weft.solver.placement.orders.slice_replicated import slice_replicated

__all__ = ["LevelSolved", "TooWide", "first_row", "levels"]

#: Bisection stops at this fraction between limits; the last run then proves the rest.
_CLOSE = 2e-3
#: Orders that are cut for a first placement.
_ORDERS = 4
#: One, of graphs of more groups.
_MANY = 200
#: Graphs of more groups are not looked at: their tables alone take seconds.
_GROUPS = 500


@dataclass(frozen=True)
class LevelSolved:
    """``stages`` from the first to the last, or ``None`` where no number of levels keeps to any limit; ``bound`` on the
    largest load, ``least``, the least found, and ``depth``, the least within ``limit``. ``shallower``: for each slack
    that was asked for, the shallowest stages within it. ``ideals`` and ``cuts``: how many there were; ``steps``: levels
    that were packed or looked up in all."""

    stages: Slicing | None
    bound: float
    least: float
    depth: int
    limit: float
    ideals: int
    cuts: int
    steps: int
    shallower: tuple[Slicing, ...] = ()


def levels(groups: Groups, budget: Budget, *, least: float, slack: float = 0.0, in_a_row: bool = False,
           twins: bool = True, start: Slicing | None = None, most: float = math.inf, shallower: Sequence[float] = (),
           max_cuts: int = MAX_CUTS, ideals: Ideals | None = None,
           on_found: Callable[[Slicing, float], None] = lambda *_: None) -> LevelSolved:
    """The graph of stages (with ``in_a_row``: the row of stages) with the least largest load, and then the least depth
    among those with a largest load no more than ``slack`` above it.

    ``least``: a bound on the least largest load that is known; ``start``: stages in a row that are known to fit;
    ``most``: larger loads are not wanted (``bound`` is then that, if there are no stages with less);
    ``shallower``: further slacks to give the shallowest stages for. Without ``twins`` interchangeable paths are told
    apart all the same, as the published programs do (to measure what it costs). ``ideals``: of the same graph with
    other costs, made without a limit, to be used again. ``on_found`` hears of stages and of a bound on the largest
    load, as they are found. Raises :class:`TooWide` where the devices are of several kinds,
    a graph has too many ideals, a tensor joins operators of a level that nothing else does, or the budget ends first.
    """
    there = [k for k, kind in enumerate(groups.problem.kinds) if kind.count]
    if len(there) != 1:
        raise TooWide("several kinds of device")
    if groups.count > _GROUPS:
        raise TooWide(f"more than {_GROUPS} groups")
    kind = groups.problem.kinds[there[0]]
    start = start or first_row(groups, budget)
    if start is not None:
        on_found(start, least)
    slowest = max(float(times[:, there[0]].sum()) for devices, times in groups.degrees if devices <= kind.count)
    top = start.value if start else slowest + sum(net.cost for net in groups.nets) * kind.transfer_factor
    top = max(min(top, most), least) * (1 + 1e-9)
    widest = top * (1 + max((slack, *shallower))) * (1 + 1e-9)
    ideals = Ideals(groups, budget, limit=widest, devices=kind.count, in_a_row=in_a_row, twins=twins,
                    max_cuts=max_cuts, alike=ideals)
    program = Program(ideals, there[0])

    least = max(least, program.crowded())
    low, found, more = least, None, _CLOSE
    limit = -1.0
    while found is None and limit < top:  # small limits leave little to look at: upwards, in growing steps
        limit = min(top, low * (1 + more)) if least > 0 else top
        found = program.run(limit)
        low, more = (limit, more * 4) if found is None else (low, more)
    if found is None:
        return LevelSolved(None, limit if most < math.inf else math.inf, math.inf, 0, math.inf, len(ideals.all),
                           ideals.count, program.steps)
    on_found(found, low)
    just_below = True  # often what was found is the best there is
    while found.value > low * (1 + 1e-9):
        just_below = just_below or found.value <= low * (1 + _CLOSE)
        limit = found.value * (1 - 1e-9) if just_below else (low + found.value) / 2
        better, just_below = program.run(limit), False
        low, found = (limit, found) if better is None else (low, better)
        on_found(found, low)
    limit = found.value * (1 + slack + 1e-9)
    shallow = program.run(limit, fewest=True)
    assert shallow is not None
    depth, further = program.depth, []
    for more in shallower:
        if (row := program.run(found.value * (1 + more + 1e-9), fewest=True)) is not None:
            further.append(row)
    return LevelSolved(shallow, min(low, found.value), found.value, depth, limit, len(ideals.all), ideals.count,
                       program.steps, tuple(further))


def first_row(groups: Groups, budget: Budget) -> Slicing | None:
    """The best stages in a row of a few orders of the groups, on the devices of the only kind; a row holds no less than
    the same stages as a graph."""
    chance = random.Random(budget.seed)
    orders = [list(range(groups.count)),
              *(depth_first_order(groups, chance, backwards=bool(i % 2)) for i in range(_ORDERS - 1))]
    best: Slicing | None = None
    for number, order in enumerate(orders):
        if number and (budget.spent or groups.count > _MANY):
            break
        row = slice_replicated(groups, order)
        if row is not None and (best is None or row.value < best.value):
            best = row
    return best
