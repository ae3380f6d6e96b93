"""Graphs of stages in the threshold encoding: memory by depth, and the least depth under a limit on the largest load.

The threshold encoding numbers the stages so that no stage follows a later one. The numbering by falling depth is one of
these: a stage that another follows is deeper. In it stages of equal depth are next to each other, and ``step[s]``,
"stage s is deeper than stage s + 1", marks the end of a level. Then

    an operator at s or later and one that follows it at t or before, s < t, not in one stage:
                                            some step from s to t - 1
    deeper[s, d], "stage s is at least d deep":  deeper[s + 1, d], or step[s] and deeper[s + 1, d - 1]

and a stage has memory for d micro-batches wherever deeper[s, d]. Conversely, thresholds and steps that satisfy the
first line are stages whose depth is at most the number of steps from them to the end, plus one: the depth in the rows
is never too small, and equal to it in the numbering above. Stages that stay empty are the first ones.

The least depth of a group needs no search (:func:`least_depths`), and is posted too.
"""

from __future__ import annotations

import math

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.late import cp_model
from weft.solver.placement.encoding.least_load import SolvedEncoding, bound_loads, least_bottleneck, read_stages
from weft.solver.placement.encoding.threshold import Literal, NoTimeLeft, Threshold, Ticks, negated
from weft.solver.placement.encoding.threshold_memory import memory_terms
from weft.solver.placement.groups import Division, Groups, neighbours, waits
from weft.solver.placement.stage_windows import windows_of


def least_depth(groups: Groups, budget: Budget, limit: float, known: int | None = None) -> SolvedEncoding:
    """Stages with no load above ``limit``, within the memory that their depth requires, as shallow as possible.

    ``known``: a depth known to be possible; only less is searched for.
    """
    stages, ticks = min(groups.problem.devices, groups.count), Ticks.of(groups, limit)
    try:
        threshold = Threshold(groups, stages, windows_of(groups, stages, limit), ticks, budget)
        graph = _DepthRows(threshold, limit)
        bound_loads(threshold, ticks.up(limit))
    except NoTimeLeft:
        return SolvedEncoding(None, 1, False, False)
    if known is not None:
        threshold.model.add(graph.depth <= known - 1)
    threshold.model.add(graph.depth >= max(least_depths(groups, limit)))
    threshold.model.minimize(graph.depth)
    outcome = run(threshold.model, budget)
    if outcome.infeasible:
        return SolvedEncoding(None, known or math.inf, True, known is None)
    bound = math.ceil(outcome.solver.best_objective_bound - 1e-6)
    return SolvedEncoding(read_stages(threshold, outcome) if outcome.found else None, bound, outcome.optimal, False)


def least_bottleneck_by_depth(groups: Groups, budget: Budget, start: Division | None, least: float, *,
                              deepest: int | None = None) -> SolvedEncoding:
    """Stages within the memory that their depth requires, whose largest load is less than that of ``start`` and as
    small as possible. ``least``: a known lower bound. ``deepest``: deeper graphs are excluded."""
    def by_depth(threshold: Threshold) -> None:
        graph = _DepthRows(threshold, math.inf if start is None else start.value)
        if deepest is not None:
            threshold.model.add(graph.depth <= deepest)

    return least_bottleneck(groups, budget, start, least, memory=by_depth)


def least_depths(groups: Groups, limit: float) -> list[int]:
    """Per group the least depth of its stage, if no load exceeds ``limit``.

    A stage is convex, so it contains an unbroken piece of every path, and pieces are no heavier than the limit. Filling
    pieces from the end of a path gives the fewest of them; of all paths that leave a group the one that needs most
    counts, and of equal ones the one whose last piece is fullest, since adding an operator keeps that order.
    """
    _, after = neighbours(groups.count, waits(groups))
    room = limit * (1 + 1e-9)
    found: list[tuple[int, float]] = [(1, 0.0)] * groups.count
    for group in reversed(range(groups.count)):
        pieces, load = max((found[other] for other in after[group]), default=(1, 0.0))
        time = float(groups.least[group])
        found[group] = (pieces, load + time) if load + time <= room else (pieces + 1, time)
    return [pieces for pieces, _ in found]


class _DepthRows:
    """Steps between levels in the threshold encoding, and memory by depth; loads do not exceed ``limit``."""

    def __init__(self, threshold: Threshold, limit: float) -> None:
        self.groups, self.threshold, model = threshold.groups, threshold, threshold.model
        groups, stages = self.groups, threshold.stages
        self.step = [model.new_bool_var(f"step[{s}]") for s in range(stages - 1)]
        self.depth: cp_model.LinearExpr | int = 1 + cp_model.LinearExpr.sum(self.step) if self.step else 1
        self._steps_on_edges()
        self._deeper: dict[tuple[int, int], Literal] = {}
        self._memory()
        for group, least in enumerate(least_depths(groups, limit) if math.isfinite(limit) else []):
            for stage in range(self.threshold.windows.first[group], self.threshold.windows.last[group] + 1):
                self.threshold.clause(negated(self.threshold.inside(group, stage)), self.deeper(stage, least))

    def _steps_on_edges(self) -> None:
        threshold, windows = self.threshold, self.threshold.windows
        for before, after in waits(self.groups):
            apart = threshold.model.new_bool_var(f"apart[{before},{after}]")
            for stage in range(threshold.stages):  # together: at or before every stage both or neither
                threshold.clause(apart, negated(threshold.at_or_before(before, stage)),
                                 threshold.at_or_before(after, stage))
            for first in range(windows.first[before], windows.last[before] + 1):
                for last in range(max(first + 1, windows.first[after]), windows.last[after] + 1):
                    threshold.clause(apart.negated(), threshold.at_or_before(before, first - 1),
                                     negated(threshold.at_or_before(after, last)), *self.step[first:last])
            # Two that are apart have at least one stage's border between them.
            for stage in range(threshold.stages):
                threshold.clause(apart.negated(), negated(threshold.at_or_before(after, stage)),
                                 threshold.at_or_before(before, stage - 1))

    def deeper(self, stage: int, depth: int) -> Literal:
        """Whether ``stage`` is at least ``depth`` deep (may be true even if not, at a cost)."""
        if depth <= 1:
            return True
        if depth > self.threshold.stages - stage:
            return False
        if (stage, depth) not in self._deeper:
            literal = self.threshold.model.new_bool_var(f"deeper[{stage},{depth}]")
            self._deeper[stage, depth] = literal
            below, less = self.deeper(stage + 1, depth), self.deeper(stage + 1, depth - 1)
            self.threshold.clause(literal, negated(below))
            self.threshold.clause(literal, self.step[stage].negated(), negated(less))
            self.threshold.clause(literal.negated(), below, self.step[stage])
            self.threshold.clause(literal.negated(), below, less)
        return self._deeper[stage, depth]

    def _memory(self) -> None:
        threshold, problem = self.threshold, self.groups.problem
        for k, kind in enumerate(problem.kinds):
            if kind.memory is None or not kind.count:
                continue
            for stage in range(threshold.stages):
                on = threshold.kind[stage][k]
                for depth in range(1, threshold.stages - stage + 1):
                    in_flight = problem.in_flight(depth)
                    if on is False or (depth > 1 and in_flight == problem.in_flight(depth - 1)):
                        continue
                    terms, limit = memory_terms(threshold, stage, k, in_flight)
                    if sum(amount for amount, _ in terms) > limit:
                        threshold.at_most(terms, limit, _both(threshold, on, self.deeper(stage, depth)))


def _both(threshold: Threshold, a: Literal, b: Literal) -> Literal:
    if isinstance(a, bool) or isinstance(b, bool):
        return (b if a else False) if isinstance(a, bool) else (a if b else False)
    both = threshold.model.new_bool_var("")
    threshold.clause(both, negated(a), negated(b))
    return both
