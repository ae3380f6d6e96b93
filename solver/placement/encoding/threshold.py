"""The threshold encoding: Booleans y[g, s], "group g is in stage s or before it", and the contents of stages by them.

    y[g, s] => y[g, s + 1]                       a group has one stage
    y[b, s] => y[a, s]  where a comes before b   stages are convex, and no two wait for each other

Both are clauses of two literals, and there is no symmetry between devices: stages are in order. "In stage s", x[g, s],
is y[g, s] and not y[g, s - 1]. A net is cut by stage s if one of its groups is in s and another is not.

This file has stages, kinds and loads; the objective is added elsewhere
(:mod:`weft.solver.placement.encoding.least_load` minimises the largest load, then the latency). A further objective
adds variables and rows to ``.model`` and reads :meth:`Threshold.at_or_before`, :meth:`Threshold.inside`,
:meth:`Threshold.cut` and :meth:`Threshold.load_terms`.

Times are whole ticks, rounded *down*: an optimum in ticks bounds the real optimum from below, and the objective of a
result is counted anew from the real times. Memory is :mod:`weft.solver.placement.encoding.threshold_memory`'.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.solver.cpsat.budget import Budget
from weft.solver.late import cp_model
from weft.solver.placement.groups import Groups
from weft.solver.placement.stage_windows import Windows

#: A Boolean, or a known value.
Literal: TypeAlias = "cp_model.BoolVarT | bool"
Terms: TypeAlias = "list[tuple[int, Literal]]"

#: The largest load in ticks: so fine that hundreds of roundings stay below a millionth, and no finer: with 2^32 ticks
#: CP-SAT's presolve (9.15) has called a model with solutions infeasible.
_RESOLUTION = 2**29
#: In place of more ticks: more than any load within a cutoff, so that sums stay well inside 64 bits.
_TOO_MANY = 2**31
#: Likewise for sums of loads, such as latencies.
_MANY_LOADS = 2**45


@dataclass(frozen=True)
class Ticks:
    """Time in whole ticks. ``per_unit`` ticks make one unit of the problem's time; infinite: any time at all is more
    ticks than fit. No time is more than 2^31 ticks."""

    per_unit: float

    @classmethod
    def of(cls, groups: Groups, cutoff: float) -> Ticks:
        """A tick so fine that ``cutoff`` (if it is infinite: all the work there is) is about 2^29 of them."""
        scale = cutoff if math.isfinite(cutoff) else everything(groups)
        return cls(_RESOLUTION / scale if scale > _RESOLUTION / sys.float_info.max else math.inf)

    def down(self, time: float) -> int:
        """``time`` in ticks, rounded down."""
        return math.floor(min(time * self.per_unit * (1 - 2**-50), _TOO_MANY)) if time > 0 else 0

    def up(self, time: float) -> int:
        """``time`` in ticks, rounded up."""
        return math.ceil(min(time * self.per_unit * (1 + 2**-50), _MANY_LOADS)) if time > 0 else 0

    def time(self, ticks: float) -> float:
        """``ticks`` in the problem's unit."""
        return ticks / self.per_unit


def everything(groups: Groups) -> float:
    """A load that no stage exceeds: every group at its slowest, and every net."""
    finite = np.where(np.isfinite(groups.times), groups.times, 0.0)
    factor = max((kind.transfer_factor for kind in groups.problem.kinds), default=0.0)
    return float(finite.max(axis=1).sum()) + factor * sum(net.cost for net in groups.nets)


class NoTimeLeft(Exception):
    """The time was over before a model was made."""


class Threshold:
    """The variables and rows that every objective shares, for ``stages`` stages and groups within ``windows``."""

    def __init__(self, groups: Groups, stages: int, windows: Windows, ticks: Ticks,
                 budget: Budget | None = None) -> None:
        self._budget, self._rows = budget, 0
        self.groups = groups
        self.stages = stages
        self.windows = windows
        self.ticks = ticks
        self.model = cp_model.CpModel()
        self._inside: dict[tuple[int, int], cp_model.IntVar] = {}
        self._cut: dict[tuple[int, int], Literal] = {}
        self._y = [self._thresholds(group) for group in range(groups.count)]
        self._groups_at: list[list[int]] = [[] for _ in range(stages)]
        for group in range(groups.count):
            for stage in range(windows.first[group], windows.last[group] + 1):
                self._groups_at[stage].append(group)
        self._nets_at = self._nets_by_stage()
        self._order()
        self.kind = self._kinds()

    def groups_at(self, stage: int) -> list[int]:
        """The groups that can be in ``stage``."""
        return self._groups_at[stage]

    # -- where groups are ----------------------------------------------------------------------------------------

    def at_or_before(self, group: int, stage: int) -> Literal:
        """y[g, s]: whether ``group`` is in ``stage`` or before it."""
        if stage < self.windows.first[group]:
            return False
        if stage >= self.windows.last[group]:
            return True
        return self._y[group][stage - self.windows.first[group]]

    def inside(self, group: int, stage: int) -> Literal:
        """x[g, s]: whether ``group`` is in ``stage``."""
        first, last = self.windows.first[group], self.windows.last[group]
        if not first <= stage <= last:
            return False
        if first == last:
            return True
        if stage == first:
            return self.at_or_before(group, stage)
        if stage == last:
            before = self.at_or_before(group, stage - 1)
            assert not isinstance(before, bool)
            return before.negated()
        if (group, stage) not in self._inside:
            x = self.model.new_bool_var(f"x[{group},{stage}]")
            now, before = self.at_or_before(group, stage), self.at_or_before(group, stage - 1)
            self.clause(negated(x), now)
            self.clause(negated(x), negated(before))
            self.clause(x, negated(now), before)
            self._inside[group, stage] = x
        return self._inside[group, stage]

    def cut(self, net: int, stage: int) -> Literal:
        """Whether ``net`` has groups in ``stage`` and outside it (may be true even if not, at a cost)."""
        if (net, stage) not in self._cut:
            self._cut[net, stage] = self._make_cut(net, stage)
        return self._cut[net, stage]

    def _nets_by_stage(self) -> list[list[int]]:
        """Per stage the nets that it may cut: those with a group that can be there, unless all groups must be."""
        found: list[list[int]] = [[] for _ in range(self.stages)]
        first, last = self.windows.first, self.windows.last
        for index, net in enumerate(self.groups.nets):
            if len({bound for group in net.groups for bound in (first[group], last[group])}) > 1:
                for stage in {s for group in net.groups for s in range(first[group], last[group] + 1)}:
                    found[stage].append(index)
        return found

    def _make_cut(self, net: int, stage: int) -> Literal:
        groups = self.groups.nets[net].groups
        inside = [self.inside(group, stage) for group in groups]
        if all(x is False for x in inside) or all(x is True for x in inside):
            return False
        if any(x is True for x in inside) and any(x is False for x in inside):
            return True
        cut = self.model.new_bool_var(f"cut[{net},{stage}]")
        # One group stands for "here" and one for "elsewhere" in turn: a cycle through the groups would suffice, but a
        # star around the first propagates as much and involves the producer most often.
        first, *others = inside
        for other in others:
            self.clause(cut, negated(first), other)
            self.clause(cut, first, negated(other))
        return cut

    def _thresholds(self, group: int) -> list[cp_model.IntVar]:
        first, last = self.windows.first[group], self.windows.last[group]
        found = [self.model.new_bool_var(f"y[{group},{stage}]") for stage in range(first, last)]
        for now, later in itertools.pairwise(found):
            self.model.add_implication(now, later)
        return found

    def _order(self) -> None:
        for before, after in self.groups.order:
            for stage in range(self.windows.first[after], self.windows.last[before]):
                self.clause(negated(self.at_or_before(after, stage)), self.at_or_before(before, stage))

    def clause(self, *literals: Literal) -> None:
        """Require at least one of ``literals``; known values are used, not posted."""
        self.tick()
        if any(literal is True for literal in literals):
            return
        self.model.add_bool_or([literal for literal in literals if literal is not False])

    # -- devices and loads ---------------------------------------------------------------------------------------

    def _kinds(self) -> list[list[Literal]]:
        """kind[s][k]: whether stage s is on a device of kind k."""
        kinds = self.groups.problem.kinds
        there = [k for k, kind in enumerate(kinds) if kind.count]
        if len(there) == 1:
            return [[k == there[0] for k in range(len(kinds))] for _ in range(self.stages)]
        found: list[list[Literal]] = []
        for stage in range(self.stages):
            chosen: list[Literal] = [self.model.new_bool_var(f"kind[{stage},{kind.name}]") if kind.count else False
                                     for kind in kinds]
            self.model.add_exactly_one([literal for literal in chosen if literal is not False])
            found.append(chosen)
        for k in there:
            self.model.add(sum(row[k] for row in found) <= kinds[k].count)
        for group in range(self.groups.count):
            for k in there:
                if not math.isfinite(self.groups.times[group, k]):
                    for stage in range(self.windows.first[group], self.windows.last[group] + 1):
                        self.clause(negated(self.inside(group, stage)), negated(found[stage][k]))
        return found

    def load_terms(self, stage: int, kind: int) -> Terms:
        """(ticks, literal) whose sum is the load of ``stage`` if it is on ``kind``; ``True`` literals are constants."""
        terms: Terms = []
        factor = self.groups.problem.kinds[kind].transfer_factor
        for group in self._groups_at[stage]:
            x, time = self.inside(group, stage), float(self.groups.times[group, kind])
            if math.isfinite(time) and self.ticks.down(time):
                terms.append((self.ticks.down(time), x))
        for index in self._nets_at[stage]:
            cost = self.ticks.down(self.groups.nets[index].cost * factor)
            if cost:
                cut = self.cut(index, stage)
                if cut is not False:
                    terms.append((cost, cut))
        return terms

    def tick(self) -> None:
        """Count a row. Raises :class:`NoTimeLeft` if the budget has ended before the model is made."""
        self._rows += 1
        if self._rows % 2000 == 0 and self._budget is not None and self._budget.spent:
            raise NoTimeLeft

    def at_most(self, terms: Sequence[tuple[int, Literal]], limit: cp_model.LinearExprT, on: Literal = True) -> None:
        """Require the sum of ``terms`` to be at most ``limit`` whenever ``on`` is true."""
        self.tick()
        row = self.model.add(weighted(terms) <= limit)
        if on is not True:
            assert not isinstance(on, bool)
            row.only_enforce_if(on)


def negated(literal: Literal) -> Literal:
    """Not ``literal``."""
    return not literal if isinstance(literal, bool) else literal.negated()


def weighted(terms: Iterable[tuple[int, Literal]]) -> cp_model.LinearExprT:
    """The sum of ``terms``."""
    known, literals, coefficients = 0, [], []
    for coefficient, literal in terms:
        if isinstance(literal, bool):
            known += coefficient * literal
        else:
            literals.append(literal)
            coefficients.append(coefficient)
    return cp_model.LinearExpr.weighted_sum(literals, coefficients) + known
