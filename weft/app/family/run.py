"""A family of plans: every part of a training solved, every plan at every part's costs, and the shortest path.

Points are solved as those of a sweep are, by the same worker and from the same cache; equal points and equal plans
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.app.family.cases import pinned_case
from weft.app.family.result import Family, FamilyPart, FamilySwitch
from weft.app.lib.case import Case, case_of, read_source
from weft.app.lib.options import SearchOptions
from weft.app.sweep.cache import Cache, cache_of, key_of
from weft.app.sweep.task import Solved, solve_point
from weft.models.phases.moves import Moves, moves_between, shards_of
from weft.models.phases.parts import parts_of
from weft.models.phases.plans import Plan, plan_of
from weft.models.spec.sections import Spec
from weft.solver.control.parallel import cores, processes
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.schedule import Schedule
from weft.solver.switching import best_switching

if TYPE_CHECKING:
    from weft.app.lib.sources import PathLike

__all__ = ["FamilyProgress", "family_of"]


@dataclass(frozen=True, slots=True)
class FamilyProgress:
    """``done`` of ``points`` are solved, ``cached`` of them known from before."""

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
    best = solving.solved([_whole_case(point, options) for point in points])
    schedules: list[Schedule] = []
    for point, found in zip(points, best, strict=True):
        if isinstance(found, str):
            at = next(part for part in parts if part.spec is point)
            raise Infeasible(f"{spec.name}, from step {at.first} on: {found}")
        assert found is not None
        schedules.append(found.weft)
    plans = list(dict.fromkeys(map(plan_of, points, schedules)))
    table = _table(points, schedules, plans, solving)
    moves = _moves(points[0], plans)
    rows = [table[next(i for i, point in enumerate(points) if point is part.spec)] for part in parts]
    times = [[math.inf if entry is None else entry.makespan for entry in row] for row in rows]
    costs = [[part.steps * time for time in row] for part, row in zip(parts, times, strict=True)]
    path = best_switching(costs, [[move.seconds for move in row] for row in moves])
    assert path is not None  # every part has the plan that was found for it
    fixed = [sum(column) for column in zip(*costs, strict=True)]
    return Family(
        spec.name, tuple(plans),
        tuple(FamilyPart(part.first, part.last, dict(part.values), tuple(row), plan, min(row))
              for part, row, plan in zip(parts, times, path.plans, strict=True)),
        tuple(FamilySwitch(part.first, a, b, moves[a][b].bytes, moves[a][b].seconds)
              for part, a, b in zip(parts[1:], path.plans, path.plans[1:], strict=False) if a != b),
        path.total, sum(map(min, costs)), tuple(fixed), solving.cached,
        {"time_limit": options.time_limit, "effort": options.effort, "seed": options.seed},
        tuple(row[plan] for row, plan in zip(rows, path.plans, strict=True)))


def _whole_case(spec: Spec, options: SearchOptions) -> Case:
    """All placements of ``spec``, as far as they are made in their share of a point's time."""
    with options.restarted().preparing():
        return case_of(spec)


def _table(points: Sequence[Spec], schedules: Sequence[Schedule], plans: Sequence[Plan],
           solving: _Solving) -> list[list[Schedule | None]]:
    """By point and plan the schedule, ``None`` where the plan does not fit there."""
    own = [plan_of(point, schedule) for point, schedule in zip(points, schedules, strict=True)]
    cases = [None if plan == own[i] else pinned_case(point, plan) for i, point in enumerate(points) for plan in plans]
    found = iter(solving.solved(cases))
    table: list[list[Schedule | None]] = []
    for i, schedule in enumerate(schedules):
        row = []
        for plan in plans:
            at = next(found)
            row.append(schedule if plan == own[i] else at.weft if isinstance(at, Solved) else None)
        table.append(row)
    return table


def _moves(spec: Spec, plans: Sequence[Plan]) -> list[list[Moves]]:
    """From each plan to each. What moves are weights and their state, which are the same at any costs."""
    held = [shards_of(spec, plan) for plan in plans]
    return [[moves_between(spec, before, after) for after in held] for before in held]


class _Solving:
    """Cases solved side by side, or known."""

    def __init__(self, options: SearchOptions, cache: Cache | None, workers: int,
                 on_progress: Callable[[FamilyProgress], None]) -> None:
        self.options, self.cache, self.workers, self.on_progress = options, cache, workers, on_progress
        self.cached = self.done = self.points = 0

    def solved(self, cases: Sequence[Case | None]) -> list[Solved | str | None]:
        """What is found of each case, a text why nothing fits, ``None`` where there is no case."""
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
                for key, future in pending.items():
                    self._keep(key, future.result(), found, is_new=True)
        return [None if key is None else found[key] for key in keys]

    def _keep(self, key: str, solved: Solved | str, found: dict[str, Solved | str], *, is_new: bool) -> None:
        found[key] = solved
        self.done += 1
        self.cached += not is_new
        if is_new and self.cache is not None and isinstance(solved, Solved):
            self.cache.save(key, solved)
        self.on_progress(FamilyProgress(self.done, self.points, self.cached))
