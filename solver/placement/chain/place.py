"""From a placement problem to a placement with a proven bound.

Exact reductions, slicings of random orders as a start, then the threshold encoding in turns with refinement near the
cuts. Graphs too large for that are coarsened first (:mod:`weft.solver.placement.reductions.coarsen`, which is said in
the result); bounds always hold for the graph that was given. Whatever is returned has passed the judge.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.solver.control.stopping import breakable
from weft.solver.cpsat.solve import Budget
from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.placement import judge
from weft.solver.placement.bounds import simple_bound
from weft.solver.placement.chain.constructions.packing import best_packing
from weft.solver.placement.chain.constructions.refinement import refine
from weft.solver.placement.chain.least_latency import least_latency
from weft.solver.placement.encoding.least_load import EVERYTHING, Options, least_bottleneck
from weft.solver.placement.groups import Groups, groups_of
from weft.solver.placement.orders.slice_order import Slicing, best_slicing, depth_first_order, largest_load
from weft.solver.placement.placement import Placement, Stage, meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.reductions.coarsen import coarsen
from weft.solver.placement.reductions.fold import fold, keep_dear_nets_whole, order_twins, without_slow_kinds
from weft.solver.placement.refusals import NoPlacement, refuse_hopeless, sentence_for
from weft.solver.placement.shares import part_of
from weft.solver.placement.windows import windows_of

__all__ = ["Step", "place", "place_within"]

#: Threshold variables up to which the exact encoding is tried on the graph itself: a good cutoff leaves few.
_EXACT = 20_000
#: What larger graphs, and slicings of mid-sized ones, are coarsened to.
_COARSE = 300
#: Entries of the tables of one slicing up to which they take seconds.
_LARGE = 10**9
#: A level between, on which what was found on the coarse graph is refined first.
_MIDDLE = 2000


@dataclass(frozen=True)
class Step:
    """Where a search stands: what it is doing, the best largest load so far and the bound."""

    doing: str
    objective: float
    bound: float
    seconds: float


def place(problem: PlacementProblem, *, time_limit: float = 60.0, effort: float | None = None, seed: int = 0,
          workers: int = 1, latency: bool = False, options: Options = EVERYTHING,
          on_step: Callable[[Step], None] = lambda _: None) -> Placement:
    """The placement with the least largest load found within ``time_limit`` seconds, with a proven bound.

    ``latency``: then, among those with that load, the one with the least latency. ``effort`` limits CP-SAT's
    deterministic time, so that a ``seed`` repeats a run exactly (with one worker and a time limit that is not met).
    Ctrl-C returns the best so far. Raises :class:`~weft.solver.placement.refusals.NoPlacement` where it is
    proven that nothing fits, and :class:`~weft.solver.feasibility.infeasible.NoneFound` where nothing was found.
    """
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    return place_within(problem, budget, latency=latency, options=options, on_step=on_step)


def place_within(problem: PlacementProblem, budget: Budget, *, latency: bool = False, options: Options = EVERYTHING,
                 on_step: Callable[[Step], None] = lambda _: None) -> Placement:
    """:func:`place` within ``budget``, which says afterwards what was used of it and whether Ctrl-C came."""
    return _Search(problem, budget, options, on_step).run(latency=latency)


class _Search:
    """One search. ``best`` is the best placement, of the groups before any further reduction; ``bound`` the best bound.
    """

    def __init__(self, problem: PlacementProblem, budget: Budget, options: Options,
                 on_step: Callable[[Step], None]) -> None:
        self.problem = problem
        self.budget = budget
        self.options = options
        self.on_step = on_step
        self.began = time.process_time()
        self.whole = groups_of(problem)
        refuse_hopeless(self.whole)
        self.groups = fold(self.whole)
        self.bound = simple_bound(self.groups)
        self.best: Slicing | None = None  # of self.whole
        self.levels = [self.groups]  # coarser and coarser
        self.details: dict[str, Any] = {
            "operators": len(problem.nodes), "groups": self.whole.count, "folded": self.groups.count,
            "coarsening": None, "slicing": None}

    def run(self, *, latency: bool) -> Placement:
        latency_bound = None
        try:
            with breakable():
                self._bottleneck()
                if latency and self.best is not None and not self.budget.spent:
                    latency_bound = self._latency()
        except KeyboardInterrupt:
            self.budget.interrupted = True
        if self.best is None:
            self._give_up()
        return self._placement(latency_bound)

    # -- the largest load ----------------------------------------------------------------------------------------

    def _bottleneck(self) -> None:
        self._slice()
        if not self._done() and not self._exact(0.1):
            self._solve_coarse(0.3)
        for share in (0.3, 0.7, 1.0):
            if self._done():
                return
            before = self.best
            self._refine(share)
            if not self._done() and not self._exact(share, of_any_size=self.best is None) and self.best is before:
                return

    def _done(self) -> bool:
        return self.budget.spent or (self.best is not None and meets(self.best.value, self.bound))

    def _slice(self) -> None:
        """Slicings on the graph itself where it is small, and on coarser ones, which is often as good and quicker."""
        self._say("slicing")
        stages = self.problem.devices
        if self._is_large(self.groups):  # something that fits, before anything that takes long
            chance = random.Random(self.budget.seed)
            for order in (range(self.groups.count), depth_first_order(self.groups, chance, backwards=True)):
                best_packing(self.groups, order, self.bound, self.budget, functools.partial(self._better, self.groups))
                if self._done():
                    return
        levels = [self.groups]
        for target in (_MIDDLE, _COARSE, _COARSE // 2):
            if levels[-1].count > 1.5 * target:
                levels.append(coarsen(levels[-1], target, stages))
        self.levels = levels
        for level in (level for level in levels if level.count <= 2 * _COARSE and not self._is_large(level)):
            best_slicing(level, self.budget, on_better=functools.partial(self._better, level))
            if self._done():
                break
        self.details["slicing"] = None if self.best is None else self.best.value

    def _is_large(self, groups: Groups) -> bool:
        """Whether cutting an order of these groups in the best way takes long."""
        tables = math.prod(min(kind.count, groups.count) + 1 for kind in self.problem.kinds)
        return groups.count > 2 * _COARSE or tables * groups.count**2 > _LARGE

    def _exact(self, share: float, *, of_any_size: bool = False) -> bool:
        """The encoding on the graph itself, for ``share`` of what time is left; ``False`` if it is too large."""
        groups, start = self.groups, self._start(self.groups)
        if start is not None and self.options.cutoff:
            cheap = keep_dear_nets_whole(without_slow_kinds(groups, start.value), start.value)
            ordered = order_twins(cheap)
            regrouped = self._start(ordered)
            if regrouped is not None and regrouped.value <= start.value * (1 + 1e-9):
                groups, start = ordered, regrouped
        stages = min(self.problem.devices, groups.count)
        cutoff = start.value if start is not None and self.options.windows else float("inf")
        windows = windows_of(groups, stages, cutoff)
        if windows.freedom > _EXACT and not of_any_size:
            return False
        self._say("exact search")
        self.details["searched"] = groups.count
        with part_of(self.budget, share) as part:
            found = least_bottleneck(groups, part, start, self.bound, options=self.options)
        if found.infeasible and self.best is None:
            raise NoPlacement(sentence_for(groups, self.budget))
        self.bound = max(self.bound, found.bound)
        self._better(groups, found.stages)
        return True

    def _solve_coarse(self, share: float) -> None:
        """The encoding on a coarse graph. Its bound is of no use: see :mod:`weft.solver.placement.reductions.coarsen`."""
        coarse = next((level for level in self.levels if level.count <= 2 * _COARSE), self.levels[-1])
        if coarse.count > 2 * _COARSE and self.best is not None:
            return  # so many devices that joining groups leaves too many
        self.details["coarsening"] = (
            f"heuristic: {self.groups.count} groups were joined along heavy edges to {coarse.count}, solved so, and "
            "refined near the cuts; the bound is one for the graph itself")
        self._say("coarse search")
        start = self._start(coarse)
        with part_of(self.budget, share) as part:
            found = least_bottleneck(coarse, part, start, self.bound)
        self._better(coarse, found.stages)
        for level in reversed(self.levels[1: self.levels.index(coarse)]):
            self._refine(share, level)

    def _refine(self, share: float, groups: Groups | None = None) -> None:
        groups = self.groups if groups is None else groups
        start = self._start(groups)
        if start is None:
            return
        self._say("refining near the cuts")
        with part_of(self.budget, share) as part:
            refine(groups, start, part, self.bound, turn=min(part.deterministic_left, part.left) / 8,
                   on_better=functools.partial(self._better, groups))

    # -- keeping the best ----------------------------------------------------------------------------------------

    def _better(self, groups: Groups, found: Slicing | None) -> None:
        """Take over ``found`` (of ``groups``) if it is better and stands before the judge."""
        if found is None or (self.best is not None and found.value >= self.best.value):
            return
        stages = [(kind, tuple(node for group in inside for node in groups.members[group]))
                  for kind, inside in found.stages]
        judged = judge.stages_of(self.problem, stages)
        if judge.breaches(self.problem, judged):
            raise judge.InvalidPlacement("; ".join(judge.breaches(self.problem, judged)))
        self.best = _on(self.whole, [(stage.kind, stage.nodes) for stage in judged])
        self._say("found")

    def _start(self, groups: Groups) -> Slicing | None:
        """The best placement in terms of ``groups``, or ``None`` where it takes one of them apart."""
        if self.best is None:
            return None
        return _on(groups, [(kind, tuple(node for group in inside for node in self.whole.members[group]))
                            for kind, inside in self.best.stages])

    def _say(self, doing: str) -> None:
        self.on_step(Step(doing, float("inf") if self.best is None else self.best.value, self.bound,
                          self.budget.elapsed))

    # -- the end -------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        if self.budget.interrupted:
            raise KeyboardInterrupt
        raise NoneFound(f"found no placement that fits the devices' memory in {self.budget.elapsed:.0f} s, and no "
                       "proof that there is none; give more time, more memory or more devices")

    def _latency(self) -> float:
        self._say("latency")
        assert self.best is not None
        stages = self._judged(self.best)
        known = judge.latency_of(self.problem, stages)
        found, bound = least_latency(self.groups, self.budget, max(stage.load for stage in stages), known)
        if found is not None:
            better = [(kind, tuple(node for group in inside for node in self.groups.members[group]))
                      for kind, inside in found.stages]
            judged = judge.stages_of(self.problem, better)
            if (not judge.breaches(self.problem, judged) and judge.latency_of(self.problem, judged) < known
                    and max(s.load for s in judged) <= max(s.load for s in stages) * (1 + 1e-9)):
                self.best = _on(self.whole, better)
        return bound

    def _judged(self, slicing: Slicing | None) -> tuple[Stage, ...]:
        assert slicing is not None
        return judge.stages_of(self.problem, [
            (kind, tuple(node for group in inside for node in self.whole.members[group]))
            for kind, inside in slicing.stages])

    def _placement(self, latency_bound: float | None) -> Placement:
        stages = self._judged(self.best)
        faults = judge.breaches(self.problem, stages)
        if faults:
            raise judge.InvalidPlacement("; ".join(faults))
        objective = max(stage.load for stage in stages)
        if meets(objective, self.bound):
            self.details["coarsening"] = None  # however it was found, it is the best there is
        return Placement(
            self.problem, stages, objective, judge.latency_of(self.problem, stages), min(self.bound, objective),
            latency_bound,
            {**self.details, "seconds": round(self.budget.elapsed, 3),
             "cpu_seconds": round(time.process_time() - self.began, 3),
             "deterministic": round(self.budget.deterministic_used, 3), "seed": self.budget.seed,
             "workers": self.budget.workers})


def _on(groups: Groups, parts: Sequence[tuple[int, Sequence[int]]]) -> Slicing | None:
    """Stages of nodes as stages of ``groups``; ``None`` if a group is in two of them."""
    stage_of = {node: index for index, (_, nodes) in enumerate(parts) for node in nodes}
    inside: list[list[int]] = [[] for _ in parts]
    for group, members in enumerate(groups.members):
        stages = {stage_of[node] for node in members}
        if len(stages) > 1:
            return None
        inside[stages.pop()].append(group)
    stages_ = tuple((kind, tuple(held)) for (kind, _), held in zip(parts, inside, strict=True) if held)
    return Slicing(largest_load(groups, stages_), stages_)
