"""A family of plans: every part of a training solved, every plan at every part's costs, and the shortest path.

In addition to the best plans of the parts there are candidates for the best single plan, the baseline of switching.
Points are solved like those of a sweep, by the same worker and with the same cache; equal points and equal plans once.

One plan at the costs of any part of a training, as a case to be solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from weft.app.family.result import Family, FamilyPart, FamilySwitch
from weft.app.lib.case import Case, candidate_placement, case_of, shape_placement
from weft.app.lib.options import SearchOptions
from weft.app.lib.sources import read_source
from weft.app.sweep.cache import Cache, Solved, cache_of, key_of, solve_point
from weft.app.sweep.run import lost_worker
from weft.models.phases.parts import parts_of
from weft.models.phases.plans import (
    PhasePlan,
    PlanMoves,
    candidate_at,
    moves_between,
    plan_of,
    shape_candidate_at,
    shards_of,
)
from weft.models.spec.sections import Spec
from weft.solver.control.parallel import cores, processes
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.schedule import Schedule
from weft.solver.switching import best_switching

if TYPE_CHECKING:
    from weft.app.lib.sources import PathLike


#: The number of a part's placements, by least bound, considered as plans for all parts; and the number of plans that
#: are best in no part but solved for every part. (The best plan of one part may not fit another, or be slow there.)
_LOOKED_AT, _FURTHER = 8, 3


@dataclass(frozen=True, slots=True)
class FamilyProgress:
    """``done`` of ``points`` are solved, ``cached`` of them from the cache."""

    done: int
    points: int
    cached: int


def family_of(
    source: PathLike | Spec,
    options: SearchOptions,
    on_progress: Callable[[FamilyProgress], None] = lambda _: None,
    *,
    workers: int | None = None,
    cache: PathLike | bool | None = None,
) -> Family:
    """See :func:`weft.family`."""
    spec = read_source(source, with_phases=True)
    if not isinstance(spec, Spec):
        raise ValueError(f"{spec.name}: a family is of a model spec with phases; a block problem has one set of costs")
    parts = parts_of(spec)
    points = list({id(part.spec): part.spec for part in parts}.values())
    solving = _Solving(options, cache_of(cache), workers or cores(), on_progress)
    cases = [_whole_case(point, options) for point in points]
    best = solving.solved(cases)
    schedules: list[Schedule] = []
    for point, found in zip(points, best, strict=True):
        if isinstance(found, str):
            at = next(part for part in parts if part.spec is point)
            raise Infeasible(f"{spec.name}, from step {at.first} on: {found}")
        assert found is not None
        schedules.append(found.weft)
    own = [plan_of(point, found.problem, found.solver, found.choices)
           for point, found in zip(points, schedules, strict=True)]
    plans = list(dict.fromkeys(own))
    table = _table(points, plans, solving, {(i, own[i]): schedule for i, schedule in enumerate(schedules)})
    steps = [sum(part.steps for part in parts if part.spec is point) for point in points]
    further = _compromises(points, steps, cases, plans, min(_alone(table, steps)))
    for row, beside in zip(table, _table(points, further, solving), strict=True):
        row += beside
    plans += further
    moves = _moves(points[0], plans)
    rows = [table[next(i for i, point in enumerate(points) if point is part.spec)] for part in parts]
    times = [[math.inf if entry is None else entry.makespan for entry in row] for row in rows]
    costs = [[part.steps * time for time in row] for part, row in zip(parts, times, strict=True)]
    path = best_switching(costs, [[move.seconds for move in row] for row in moves])
    assert path is not None  # every part has its own plan
    return Family(
        spec.name, tuple(plans),
        tuple(FamilyPart(part.first, part.last, dict(part.values), tuple(row), plan, min(row))
              for part, row, plan in zip(parts, times, path.plans, strict=True)),
        tuple(FamilySwitch(part.first, a, b, moves[a][b].bytes, moves[a][b].seconds)
              for part, a, b in zip(parts[1:], path.plans, path.plans[1:], strict=False) if a != b),
        path.total, sum(map(min, costs)), tuple(_alone(rows, [part.steps for part in parts])), solving.cached,
        {"time_limit": options.time_limit, "effort": options.effort, "seed": options.seed},
        tuple(map(tuple, rows)))


def _whole_case(spec: Spec, options: SearchOptions) -> Case:
    """All placements of ``spec`` that can be made in their share of a point's time."""
    with options.restarted().preparing():
        return case_of(spec)


def _table(points: Sequence[Spec], plans: Sequence[PhasePlan], solving: _Solving,
           known: Mapping[tuple[int, PhasePlan], Schedule] = MappingProxyType({})) -> list[list[Schedule | None]]:
    """By point and plan the schedule, ``None`` if the plan does not fit there; ``known``: by number of the point."""
    cases = [None if (i, plan) in known else pinned_case(point, plan)
             for i, point in enumerate(points) for plan in plans]
    found = iter(solving.solved(cases))
    table: list[list[Schedule | None]] = []
    for i in range(len(points)):
        row = []
        for plan in plans:
            at = next(found)
            row.append(at.weft if isinstance(at, Solved) else known.get((i, plan)))
        table.append(row)
    return table


def _alone(table: Sequence[Sequence[Schedule | None]], steps: Sequence[int]) -> list[float]:
    """By plan, seconds of all steps; infinite if it does not fit in some part."""
    return [sum(math.inf if entry is None else count * entry.makespan
                for entry, count in zip(column, steps, strict=True)) for column in zip(*table, strict=True)]


def _compromises(points: Sequence[Spec], steps: Sequence[int], cases: Sequence[Case], plans: Sequence[PhasePlan],
                 best: float) -> list[PhasePlan]:
    """Plans besides ``plans``, the best of the parts, that may take less than ``best`` seconds for all ``steps``
    together: those with the least bounds among the placements considered."""
    looked_at = dict[PhasePlan, float]()
    for point, case in zip(points, cases, strict=True):
        listed = sorted((*case.placements, *case.whole_model), key=lambda one: one.least(case.micro_batches))
        for placement in listed[:_LOOKED_AT]:
            plan = plan_of(point, placement.whole, placement.details, placement.choices)
            if plan not in plans and plan not in looked_at:
                looked_at[plan] = sum(count * _least(pinned_case(at, plan))
                                      for at, count in zip(points, steps, strict=True))
    return sorted((plan for plan, least in looked_at.items() if least < best), key=looked_at.__getitem__)[:_FURTHER]


def _least(case: Case | None) -> float:
    """A lower bound in seconds on a step of a pinned ``case``; infinite if there is none."""
    return math.inf if case is None else min(
        placement.least(case.micro_batches) for placement in (*case.placements, *case.whole_model))


def _moves(spec: Spec, plans: Sequence[PhasePlan]) -> list[list[PlanMoves]]:
    """From each plan to each. Weights and their state move, which are the same at any costs."""
    held = [shards_of(spec, plan) for plan in plans]
    return [[moves_between(spec, before, after) for after in held] for before in held]


class _Solving:
    """Cases solved in parallel, or known."""

    def __init__(self, options: SearchOptions, cache: Cache | None, workers: int,
                 on_progress: Callable[[FamilyProgress], None]) -> None:
        self.options, self.cache, self.workers, self.on_progress = options, cache, workers, on_progress
        self.cached = self.done = self.points = 0

    def solved(self, cases: Sequence[Case | None]) -> list[Solved | str | None]:
        """The result of each case, a text if nothing fits, ``None`` if there is no case."""
        keys = [None if case is None else key_of(case, self.options) for case in cases]
        found: dict[str, Solved | str] = {}
        wanted = {key: case for key, case in zip(keys, cases, strict=True) if key is not None and case is not None}
        self.points += len(wanted)
        for key, case in wanted.items():
            known = None if self.cache is None else self.cache.load(key, case)
            if known is not None:
                self._keep(key, known, found, is_new=False)
        left = {key: case for key, case in wanted.items() if key not in found}
        if left:
            with processes(self.workers, len(left)) as pool:
                pending = {key: pool.submit(solve_point, case, self.options.restarted()) for key, case in left.items()}
                try:
                    for key, future in pending.items():
                        self._keep(key, future.result(), found, is_new=True)
                except BrokenExecutor:
                    raise lost_worker(self.cache) from None
        return [None if key is None else found[key] for key in keys]

    def _keep(self, key: str, solved: Solved | str, found: dict[str, Solved | str], *, is_new: bool) -> None:
        found[key] = solved
        self.done += 1
        self.cached += not is_new
        if is_new and self.cache is not None and isinstance(solved, Solved):
            self.cache.save(key, solved)
        self.on_progress(FamilyProgress(self.done, self.points, self.cached))


def pinned_case(spec: Spec, plan: PhasePlan) -> Case | None:
    """``plan`` alone at the costs of ``spec``; ``None`` if it does not fit."""
    if plan.kind == "data":
        on_all = spec.model_copy(update={"placement": spec.placement.model_copy(update={
            "shapes": ("data",), "cut": None})})
        try:
            found = case_of(on_all)
        except Infeasible:
            return None
        alike = tuple(entry for entry in found.whole_model if entry.title == plan.title)
        return replace(found, whole_model=alike) if alike else None
    if plan.kind == "stages":
        candidate = candidate_at(spec, plan)
        placement = None if candidate is None else candidate_placement(candidate)
    else:
        made = shape_candidate_at(spec, plan)
        placement = None if made is None else shape_placement(*made)
    if placement is None:
        return None
    placement = replace(placement, title=plan.title, details={**placement.details, "placement": plan.title})
    return Case(spec.name, (placement,), spec.run.micro_batches, reserve=spec.cluster.reserve)
