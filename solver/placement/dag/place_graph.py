"""From a placement problem to a graph of stages: least largest load, then least depth, each with a bound.

One goal after the other, never both in one sum: a search for stages in a row with one micro-batch in flight gives a
largest load that no graph of stages can beat (a deeper stage holds no less, and loads are the same). If some graph
keeps to it in the memory that its depths ask for, it is the least, and the shallowest of these graphs is the answer;
if none does, the least largest load is searched for with memory by depth. Graphs of a few paths need no encoding: a
dynamic program over levels (:mod:`weft.solver.placement.dag.levels.level_search`) proves both goals, and is tried
first. Where stages may be replicated it is the only exact way; graphs that are too wide for it are coarsened, every
path to a few pieces, or get the best stages in a row of a few orders, with the bound of
:mod:`weft.solver.placement.bounds`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable

from weft.solver.control.stopping import breakable
from weft.solver.cpsat.solve import Budget
from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.placement import judge
from weft.solver.placement.bounds import simple_bound
from weft.solver.placement.chain.place import Step, place_within
from weft.solver.placement.dag.depth_encoding import least_bottleneck_by_depth, least_depth
from weft.solver.placement.dag.levels.level_search import TooWide, first_row, levels
from weft.solver.placement.dag.stage_dag import GraphPlacement, stages_by_depth
from weft.solver.placement.groups import Groups, groups_of
from weft.solver.placement.orders.slice_order import Slicing, largest_load
from weft.solver.placement.placement import Stage, meets
from weft.solver.placement.problem import PlacementError, PlacementProblem
from weft.solver.placement.reductions.coarsen import shorten_paths
from weft.solver.placement.reductions.fold import order_branches, order_twins
from weft.solver.placement.refusals import NoPlacement, refuse_hopeless
from weft.solver.placement.shares import part_of

__all__ = ["place_graph"]

#: Graphs of more groups have tables that do not fit a machine.
_MOST_GROUPS = 2000
#: Pieces that paths are made of where whole ones are too many, and how many cuts of such a graph are worth their time.
_PIECES, _FEW_CUTS = (6, 4, 3, 2, 1), 300_000
#: Of what is proven to be impossible.
_IMPOSSIBLE = ("no graph of stages fits the devices' memory; give more memory or more devices, or a smaller "
               "micro-batch")


def place_graph(problem: PlacementProblem, *, slack: float = 0.0, time_limit: float = 60.0,
                effort: float | None = None, seed: int = 0, workers: int = 1,
                on_step: Callable[[Step], None] = lambda _: None) -> GraphPlacement:
    """The graph of stages with the least largest load, and of these the shallowest.

    ``slack`` lets the shallowest have a largest load up to that fraction above the least one. Other arguments and
    errors are those of :func:`weft.solver.placement.chain.place.place`; a search cut short by time or Ctrl-C returns
    the best graph so far.
    """
    if not 0 <= slack < math.inf:
        raise PlacementError(f"slack is {slack}, it must be 0 or more and finite")
    began = time.process_time()
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    search = _Search(problem, budget, slack, on_step)
    return search.run(began)


class _Search:
    """One search. ``best`` are the best stages so far: with the least largest load until :meth:`_settle` says what that
    is, and from then on the shallowest within the limit. ``least`` is the least largest load found, ``bound`` and
    ``depth_bound`` what is proven."""

    def __init__(self, problem: PlacementProblem, budget: Budget, slack: float, on_step: Callable[[Step], None]
                 ) -> None:
        self.problem, self.budget, self.slack, self.on_step = problem, budget, slack, on_step
        self.whole = groups_of(problem)
        if not problem.degrees:  # what does not fit one device may fit several
            refuse_hopeless(self.whole)
        self.groups = self.whole if problem.degrees else order_branches(order_twins(self.whole))
        self.bound = simple_bound(self.whole)
        self.best: tuple[Stage, ...] | None = None
        self.least = math.inf
        self.limit: float | None = None
        self.depth_bound = 1
        self.steps = 0
        self.by = "levels"

    def run(self, began: float) -> GraphPlacement:
        try:
            with breakable():
                self._search()
        except KeyboardInterrupt:
            self.budget.interrupted = True
        except NoneFound:  # one of the ways; another may have found something
            if self.best is None:
                raise
        if self.best is None:
            self._give_up()
        return self._answer(began)

    def _search(self) -> None:
        if not self._by_levels() and (not self.budget.spent or (self.best is None and not self.budget.interrupted)):
            if self.problem.degrees:
                self._by_rows()
            else:
                self._by_encoding()

    def _give_up(self) -> None:
        if self.budget.interrupted:
            raise KeyboardInterrupt
        what = "replicated stages" if self.problem.degrees else "stages"
        raise NoneFound(f"found no graph of {what} that fits the devices' memory in {self.budget.elapsed:.0f} s, and "
                       "no proof that there is none; give more time, more memory or more devices")

    def _answer(self, began: float) -> GraphPlacement:
        assert self.best is not None
        stages, after, deep = stages_by_depth(self.problem, _parts(self.best), [stage.devices for stage in self.best])
        faults = judge.breaches(self.problem, stages)
        if faults:
            raise judge.InvalidPlacement("; ".join(faults))
        objective = max(stage.load for stage in stages)
        return GraphPlacement(
            self.problem, stages, objective, judge.latency_of(self.problem, stages), min(self.bound, objective),
            solver={"groups": self.groups.count, "by": self.by, "steps": self.steps,
                    "seconds": round(self.budget.elapsed, 3), "cpu_seconds": round(time.process_time() - began, 3),
                    "seed": self.budget.seed, "deterministic": round(self.budget.deterministic_used, 3),
                    "workers": self.budget.workers, "coarsening": None if self.by != "rows" else
                    "the graph is too wide for proof: a few pieces a path, or a few orders, were searched"},
            after=after, depths=deep, depth_bound=min(self.depth_bound, max(deep)), slack=self.slack,
            least=min(self.least, objective))

    # -- what is known -----------------------------------------------------------------------------------------------

    def _keep(self, groups: Groups, found: Slicing | None) -> bool:
        """Take over ``found`` (of ``groups``) if it is better; whether there was anything that stands before the judge
        with memory by depth."""
        if found is None:
            return False
        stages, _, deep = stages_by_depth(self.problem, _nodes(groups, found), found.devices)
        if judge.breaches(self.problem, stages):
            return False
        load = max(stage.load for stage in stages)
        if self.best is None or self._is_better(load, max(deep)):
            self.best = stages
        self.least = min(self.least, load)
        return True

    def _is_better(self, load: float, depth: int) -> bool:
        assert self.best is not None
        known, deep = max(stage.load for stage in self.best), self._depth
        if self.limit is None or not meets(known, self.limit):
            return load < known
        return meets(load, self.limit) and (depth, load) < (deep, known)

    @property
    def _depth(self) -> int:
        """Of the best stages."""
        assert self.best is not None
        return max(stages_by_depth(self.problem, _parts(self.best), [stage.devices for stage in self.best])[2])

    def _settle(self) -> None:
        """What was found has the least largest load that will be: depth is next, within the slack above that."""
        self.limit = self.least * (1 + self.slack)

    # -- the ways ----------------------------------------------------------------------------------------------------

    def _by_levels(self) -> bool:
        """Both goals by dynamic programming; ``False`` where the graph is too wide for that."""
        groups = self.whole
        self._say("levels")
        try:
            with part_of(self.budget, 0.3) as part:
                found = levels(groups, part, least=self.bound, slack=self.slack,
                               on_found=functools.partial(self._hear, groups))
        except TooWide:
            return False
        self.steps = found.steps
        if found.stages is None:
            raise NoPlacement(_IMPOSSIBLE)
        self.bound, self.depth_bound = found.bound, found.depth
        self._settle()
        if not self._keep(groups, found.stages):
            raise judge.InvalidPlacement("stages that were found level by level break a rule")
        return True

    def _hear(self, groups: Groups, found: Slicing, bound: float) -> None:
        """Stages found on the way, and a bound, which is one for the graph itself only if the groups are."""
        self._keep(groups, found)
        if groups is self.whole:
            self.bound = max(self.bound, min(bound, self.least))

    def _by_rows(self) -> None:
        """Replicated stages without proof: the better of a coarser graph's and the best in a row of a few orders."""
        self.by = "rows"
        if sum(kind.count > 0 for kind in self.problem.kinds) > 1:
            raise PlacementError("stages are replicated on devices of one kind, and here there are several; leave out "
                                 "the replication or the other kinds")
        if self.whole.count > _MOST_GROUPS:
            raise PlacementError(f"{self.problem.name} has {self.whole.count} operators to divide, replicated stages "
                                 f"are made of {_MOST_GROUPS} or fewer; keep layers whole, or do without replication")
        self._coarser()
        self._keep(self.whole, first_row(self.whole, self.budget))

    def _coarser(self) -> None:
        """By levels, of the graph with every path made of a few pieces, as many as the levels can take."""
        tried = self.whole.count
        for pieces in _PIECES:
            groups = shorten_paths(self.whole, pieces)
            if groups.count == tried:
                continue
            tried = groups.count
            self._say(f"levels of paths of {pieces}")
            try:
                with part_of(self.budget, 0.4) as part:
                    found = levels(groups, part, least=self.bound, slack=self.slack, max_cuts=_FEW_CUTS,
                                   on_found=functools.partial(self._hear, groups))
            except TooWide:
                continue
            if self._keep(groups, found.stages):
                return

    def _by_encoding(self) -> None:
        """Both goals in the threshold encoding, one after the other.

        Stages in a row with one micro-batch in flight hold no more than as a graph: their least load is a bound, and no
        graph fits where they do not. Where none of these graphs fits, least loads are searched for with memory by
        depth; the limit is above what is found then.
        """
        self.by = "encoding"
        with part_of(self.budget, 0.4) as part:
            relaxed = place_within(dataclasses.replace(self.problem, micro_batches=1), part, on_step=self.on_step)
        self.bound = max(self.bound, relaxed.bound)
        if self._keep(self.whole, _on(self.whole, relaxed.stages)) or meets(self.least, relaxed.objective):
            self._settle()
            self._shallower()
        elif not self.budget.spent:
            self._say("depth")
            found = least_depth(self.groups, self.budget, relaxed.objective)
            if not self._keep(self.groups, found.stages):
                self._by_depth()
                self._settle()
                self._shallower()
            else:
                self._settle()
                self.depth_bound = int(found.bound)
                if self.slack:
                    self.depth_bound = 1
                    self._shallower()

    def _shallower(self) -> None:
        """The shallowest graph within the limit."""
        self._say("depth")
        if self.budget.spent:
            return
        assert self.limit is not None
        found = least_depth(self.groups, self.budget, self.limit, self._depth)
        self.depth_bound = int(found.bound)
        if found.stages is not None and not self._keep(self.groups, found.stages):
            self._refuse(found.stages)

    def _by_depth(self) -> None:
        """The least largest load where memory binds, from the best stages in a row that fit."""
        try:
            with part_of(self.budget, 0.3) as part:
                row = place_within(self.problem, part, on_step=self.on_step)
            self._keep(self.whole, _on(self.whole, row.stages))
        except (NoPlacement, NoneFound):
            pass
        self._say("least load with memory by depth")
        start = None if self.best is None else _on(self.groups, self.best)
        with part_of(self.budget, 0.6) as part:
            found = least_bottleneck_by_depth(self.groups, part, start, self.bound)
        if found.infeasible and self.best is None:
            raise NoPlacement(_IMPOSSIBLE)
        self.bound = max(self.bound, found.bound)
        if found.stages is not None and not self._keep(self.groups, found.stages):
            self._refuse(found.stages)
        if self.best is None:
            self._give_up()

    def _refuse(self, found: Slicing) -> None:
        faults = judge.breaches(self.problem, stages_by_depth(self.problem, _nodes(self.groups, found))[0])
        raise judge.InvalidPlacement("; ".join(faults))

    def _say(self, doing: str) -> None:
        load = math.inf if self.best is None else max(stage.load for stage in self.best)
        self.on_step(Step(doing, load, self.bound, self.budget.elapsed))


def _parts(stages: tuple[Stage, ...]) -> list[tuple[int, tuple[int, ...]]]:
    return [(stage.kind, stage.nodes) for stage in stages]


def _nodes(groups: Groups, slicing: Slicing) -> list[tuple[int, tuple[int, ...]]]:
    return [(kind, tuple(node for group in inside for node in groups.members[group]))
            for kind, inside in slicing.stages]


def _on(groups: Groups, stages: tuple[Stage, ...]) -> Slicing | None:
    """``stages`` as stages of ``groups`` (``None``: one takes a group apart)."""
    stage_of = {node: index for index, stage in enumerate(stages) for node in stage.nodes}
    inside: list[list[int]] = [[] for _ in stages]
    for group, members in enumerate(groups.members):
        found = {stage_of.get(node, -1) for node in members}
        if len(found) > 1 or -1 in found:
            return None
        inside[found.pop()].append(group)
    parts = tuple((stage.kind, tuple(held)) for stage, held in zip(stages, inside, strict=True))
    return Slicing(largest_load(groups, parts), parts)
