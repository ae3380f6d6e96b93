"""From a placement problem to a graph of stages: least largest load, then least depth, each with a bound.

One goal after the other, never both in one sum: a search for stages in a row with one micro-batch in flight gives a
largest load that no graph of stages can beat (a deeper stage holds no less, and loads are the same). If some graph
keeps to it in the memory that its depths ask for, it is the least, and the shallowest of these graphs is the answer;
if none does, the least largest load is searched for with memory by depth. Graphs of a few paths need no encoding: a
dynamic program over levels (:mod:`solver.placement.levels`) proves both goals, and is tried first. Where stages may be
replicated it is the only exact way; graphs that are too wide for it are coarsened, every path to a few pieces, or get
the best stages in a row of a few orders, with the bound of :mod:`solver.placement.bounds`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence

from solver.cpsat import Budget
from solver.placement import judge
from solver.placement.bounds import simple_bound
from solver.placement.coarsen import shorten_paths
from solver.placement.depth import Found, least_bottleneck_by_depth, least_depth, waits
from solver.placement.exact import largest_load
from solver.placement.groups import Groups, contract, groups_of
from solver.placement.hopeless import NoPlacement, refuse_hopeless
from solver.placement.levels import TooWide, first_row, levels
from solver.placement.placement import Placement, Stage
from solver.placement.problem import PlacementError, PlacementProblem
from solver.placement.reduce import order_twins
from solver.placement.search import Step, place
from solver.placement.slicing import Slicing
from solver.placement.stage_dag import GraphPlacement, stages_by_depth

__all__ = ["order_branches", "place_graph"]

#: Graphs of more groups have tables that do not fit a machine.
_MOST_GROUPS = 2000
#: Pieces that paths are made of where whole ones are too many, and how many cuts of such a graph are worth their time.
_PIECES, _FEW_CUTS = (6, 4, 3, 2, 1), 300_000


def place_graph(problem: PlacementProblem, *, slack: float = 0.0, time_limit: float = 60.0,
                effort: float | None = None, seed: int = 0, workers: int = 1,
                on_step: Callable[[Step], None] = lambda _: None) -> GraphPlacement:
    """The graph of stages with the least largest load, and of these the shallowest.

    ``slack`` lets the shallowest have a largest load up to that fraction above the least one. Other arguments and
    errors are those of :func:`solver.placement.search.place`; a search cut short by time or Ctrl-C returns the best
    graph so far.
    """
    if not 0 <= slack < math.inf:
        raise PlacementError(f"slack is {slack}, it must be 0 or more and finite")
    began = time.process_time()
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    search = _Search(problem, budget, slack, on_step)
    return search.run(began)


class _Search:
    def __init__(self, problem: PlacementProblem, budget: Budget, slack: float, on_step: Callable[[Step], None]
                 ) -> None:
        self.problem, self.budget, self.slack, self.on_step = problem, budget, slack, on_step
        self.whole = groups_of(problem)
        self.groups = self.whole if problem.degrees else order_branches(order_twins(self.whole))
        self.depth_bound = 1
        self.limit = float("inf")
        self.steps = 0
        self.least = 0.0

    def run(self, began: float) -> GraphPlacement:
        try:
            solved = self._by_levels()
        except KeyboardInterrupt:
            self.budget.interrupted = True
            solved = None
        best, bound = solved or (self._by_rows() if self.problem.degrees else self._by_encoding())
        stages, after, deep = stages_by_depth(self.problem, _parts(best), [stage.devices for stage in best])
        objective = max(stage.load for stage in stages)
        by = "levels" if solved else "rows" if self.problem.degrees else "encoding"
        return GraphPlacement(
            self.problem, stages, objective, judge.latency_of(self.problem, stages), min(bound, objective),
            solver={"groups": self.groups.count, "by": by, "steps": self.steps,
                    "seconds": round(self.budget.elapsed, 3), "cpu_seconds": round(time.process_time() - began, 3),
                    "seed": self.budget.seed, "deterministic": round(self.budget.deterministic_used, 3),
                    "workers": self.budget.workers, "coarsening": None if by != "rows" else
                    "the graph is too wide for proof: a few pieces a path, or a few orders, were searched"},
            after=after, depths=deep, depth_bound=min(self.depth_bound, max(deep)), limit=self.limit,
            least=min(self.least, objective))

    def _by_levels(self) -> tuple[tuple[Stage, ...], float] | None:
        """Both goals by dynamic programming, or ``None`` where the graph is too wide for that."""
        groups = self.whole
        if not self.problem.degrees:  # what does not fit one device may fit several
            refuse_hopeless(groups)
        self._say("levels", None)
        try:
            found = levels(groups, self._part(0.3), least=simple_bound(groups), slack=self.slack)
        except TooWide:
            return None
        self.steps = found.steps
        if found.stages is None:
            raise NoPlacement("no graph of stages fits the devices' memory; give more memory or more devices, or a "
                              "smaller micro-batch")
        stages = _fitting(self.problem, _nodes(groups, found.stages), found.stages.devices)
        if stages is None:
            raise judge.InvalidPlacement("stages that were found level by level break a rule")
        self.depth_bound, self.limit, self.least = found.depth, found.limit, found.limit / (1 + self.slack)
        return stages, found.bound

    def _by_rows(self) -> tuple[tuple[Stage, ...], float]:
        """Replicated stages without proof: the better of a coarser graph's and the best in a row of a few orders."""
        if sum(kind.count > 0 for kind in self.problem.kinds) > 1:
            raise PlacementError("stages are replicated on devices of one kind, and here there are several; leave out "
                                 "the replication or the other kinds")
        if self.whole.count > _MOST_GROUPS:
            raise PlacementError(f"{self.problem.name} has {self.whole.count} operators to divide, replicated stages "
                                 f"are made of {_MOST_GROUPS} or fewer; keep layers whole, or do without replication")
        answers = self._coarser()
        row = first_row(self.whole, self.budget)
        if row is not None:
            answers.append((row.value, stages_by_depth(self.problem, _nodes(self.whole, row), row.devices)[0]))
        if not answers:
            raise NoPlacement("found no graph of replicated stages that fits the devices' memory, and no proof that "
                              "there is none; give more memory or more devices, or a smaller micro-batch")
        self.least, stages = min(answers, key=lambda answer: answer[0])
        self.limit = self.least * (1 + self.slack)
        return stages, simple_bound(self.whole)

    def _coarser(self) -> list[tuple[float, tuple[Stage, ...]]]:
        """By levels, of the graph with every path made of a few pieces, as many as the levels can take."""
        tried = self.whole.count
        for pieces in _PIECES:
            groups = shorten_paths(self.whole, pieces)
            if groups.count == tried:
                continue
            tried = groups.count
            self._say(f"levels of paths of {pieces}", None)
            try:
                found = levels(groups, self._part(0.4), least=simple_bound(self.whole), slack=self.slack,
                               max_cuts=_FEW_CUTS)
            except TooWide:
                continue
            if found.stages is None:
                continue
            stages = stages_by_depth(self.problem, _nodes(groups, found.stages), found.stages.devices)[0]
            return [(found.stages.value, stages)]
        return []

    def _by_encoding(self) -> tuple[tuple[Stage, ...], float]:
        """Both goals in the threshold encoding, one after the other."""
        relaxed = self._in_a_row(dataclasses.replace(self.problem, micro_batches=1), 0.4)
        assert relaxed is not None
        best, bound = _fitting(self.problem, _parts(relaxed.stages)), relaxed.bound
        self.least = relaxed.objective
        self.limit = self.least * (1 + self.slack)
        found = self._shallower(best)
        if best is None and found is None:
            best, bound = self._by_depth(bound)
            self.least = max(stage.load for stage in best)
            self.limit = self.least * (1 + self.slack)
            found = self._shallower(best)
        answer = found or best
        assert answer is not None
        return answer, bound

    def _shallower(self, best: tuple[Stage, ...] | None) -> tuple[Stage, ...] | None:
        """The shallowest graph within the limit that beats ``best``, if there is one."""
        known = None if best is None else stages_by_depth(self.problem, [(s.kind, s.nodes) for s in best])[2][0]
        self._say("depth", best)
        if self.budget.spent:
            return None
        found = least_depth(self.groups, self.budget, self.limit, known)
        self.depth_bound = 1 if found.infeasible and known is None else int(found.bound)
        return self._read(found)

    def _by_depth(self, least: float) -> tuple[tuple[Stage, ...], float]:
        """The least largest load where memory binds, from the best stages in a row that fit."""
        row = self._in_a_row(self.problem, 0.3, needed=False)
        start = None if row is None else _on(self.groups, _fitting(self.problem, _parts(row.stages)) or ())
        self._say("least load with memory by depth", None)
        found = least_bottleneck_by_depth(self.groups, self._part(0.6), start, least)
        stages = self._read(found)
        if stages is None and row is not None:
            stages = _fitting(self.problem, _parts(row.stages))
        if stages is None:
            raise NoPlacement("no graph of stages fits the devices' memory; give more memory or more devices, or a "
                              "smaller micro-batch" if found.infeasible else
                              f"found no graph of stages that fits the devices' memory in {self.budget.elapsed:.0f} s, "
                              "and no proof that there is none; give more time, more memory or more devices")
        return stages, found.bound

    def _in_a_row(self, problem: PlacementProblem, share: float, *, needed: bool = True) -> Placement | None:
        part = self._part(share)
        try:
            row = place(problem, time_limit=part.left, effort=part.deterministic, seed=part.seed, workers=part.workers,
                        on_step=self.on_step)
        except NoPlacement:
            if needed:
                raise
            return None
        self.budget.deterministic_used += row.solver["deterministic"]
        return row

    def _part(self, share: float) -> Budget:
        whole = self.budget
        limited = whole.deterministic is not None
        return Budget(seconds=whole.left if limited else whole.left * share, seed=whole.seed, workers=whole.workers,
                      deterministic=whole.deterministic_left * share if limited else None)

    def _read(self, found: Found) -> tuple[Stage, ...] | None:
        if found.stages is None:
            return None
        parts = _nodes(self.groups, found.stages)
        stages = _fitting(self.problem, parts)
        if stages is None:
            faults = judge.breaches(self.problem, stages_by_depth(self.problem, parts)[0])
            raise judge.InvalidPlacement("; ".join(faults))
        return stages

    def _say(self, doing: str, best: tuple[Stage, ...] | None) -> None:
        load = float("inf") if best is None else max(stage.load for stage in best)
        self.on_step(Step(doing, load, 0.0, self.budget.elapsed))


def order_branches(groups: Groups) -> Groups:
    """Interchangeable branches put into an order: the first group of one is in the stage of the next one's or before.

    A branch is a path of groups that nothing comes before but what comes before all of it, each but the last with the
    next as its only successor. Branches that start after the same groups, end before the same groups and cost, hold and
    send the same, group by group, can exchange their places in a placement: no load, memory or depth changes. So some
    best placement has their first groups in any order we like.
    """
    after: list[list[int]] = [[] for _ in range(groups.count)]
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for first, second in waits(groups):
        after[first].append(second)
        before[second].append(first)
    families: dict[object, list[list[int]]] = {}
    for group in range(groups.count):
        if len(before[group]) == 1 and len(after[before[group][0]]) == 1:
            continue  # inside a path
        path = [group]
        while len(after[path[-1]]) == 1 and len(before[after[path[-1]][0]]) == 1:
            path.append(after[path[-1]][0])
        if len(path) < 2:
            continue  # single groups are :func:`~solver.placement.reduce.order_twins`'
        place = {member: -1 - i for i, member in enumerate(path)}
        nets = sorted((tuple(sorted(place.get(other, other) for other in groups.nets[i].groups)), groups.nets[i].cost)
                      for i in {i for member in path for i in groups.nets_of[member]})
        key = (tuple(before[group]), tuple(after[path[-1]]), tuple(nets),
               tuple((tuple(groups.times[m].tolist()), groups.resident[m], groups.per_micro_batch[m]) for m in path))
        families.setdefault(key, []).append(path)
    further = [(a[0], b[0]) for paths in families.values() for a, b in itertools.pairwise(paths)]
    return contract(groups, range(groups.count), further) if further else groups


def _parts(stages: tuple[Stage, ...]) -> list[tuple[int, tuple[int, ...]]]:
    return [(stage.kind, stage.nodes) for stage in stages]


def _nodes(groups: Groups, slicing: Slicing) -> list[tuple[int, tuple[int, ...]]]:
    return [(kind, tuple(node for group in inside for node in groups.members[group]))
            for kind, inside in slicing.stages]


def _fitting(problem: PlacementProblem, parts: list[tuple[int, tuple[int, ...]]], devices: Sequence[int] = ()
             ) -> tuple[Stage, ...] | None:
    """The stages of ``parts`` by depth, or ``None`` where they break a rule."""
    stages = stages_by_depth(problem, parts, devices)[0]
    return None if judge.breaches(problem, stages) else stages


def _on(groups: Groups, stages: tuple[Stage, ...]) -> Slicing | None:
    """``stages`` as stages of ``groups`` (``None``: there are none, or one takes a group apart)."""
    stage_of = {node: index for index, stage in enumerate(stages) for node in stage.nodes}
    inside: list[list[int]] = [[] for _ in stages]
    for group, members in enumerate(groups.members):
        found = {stage_of.get(node, -1) for node in members}
        if len(found) > 1 or -1 in found:
            return None
        inside[found.pop()].append(group)
    parts = tuple((stage.kind, tuple(held)) for stage, held in zip(stages, inside, strict=True))
    return Slicing(largest_load(groups, parts), parts)
