"""The best step of a spec on a uniform grid of GPUs: grid, cut and order.

All grids are bounded first. Those with the least estimates are tried, each on an even cut under 1F1B or interleaved
1F1B as in frameworks; then weft's own search runs inside the best: all cuts, chunks and orders of each one's pipeline
(:func:`weft.app.solving.solve.solve_case`). The objective is the whole step: the pipeline, and the work of gradients,
optimizer and parameters after it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TypeAlias

from weft.app.lib.case import Case, CasePlacement, case_of, grid_case, require_alike
from weft.app.lib.grid_pipeline import GridPipeline
from weft.app.lib.options import SearchOptions
from weft.app.solving.solve import solve_case
from weft.app.tools.elsewhere import elsewhere
from weft.models.grid.grids import Grid, GridSpace
from weft.models.grid.pipeline import grid_space
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError
from weft.models.tensor_parallel.parts import gpu_name
from weft.solver.baselines import BASELINES
from weft.solver.baselines.lib.base import NotApplicable
from weft.solver.baselines.one_f_one_b import orders_within_memory
from weft.solver.bounds.load import load_bound
from weft.solver.control.clock import OutOfTime
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.portfolio import Candidate, Portfolio
from weft.solver.schedule import Schedule
from weft.solver.step.search import Progress

if TYPE_CHECKING:
    from weft.runtime.export.tools import Tool

#: Finds the best schedule of a case.
Solve: TypeAlias = Callable[[Case, SearchOptions, Callable[[Progress], None]], Schedule]

#: The share of the time for listing further grids.
_LISTING = 0.3
#: Number of grids tried for a first answer, and afterwards; not those whose estimate exceeds the best by this much.
_FIRST, _LOOKED, _FAR = 3, 20, 1.25
#: Number of grids searched, and the shares of the remaining time for the first and the second of three.
_SEARCHED, _SHARE = 3, 0.5
#: Most GPUs for which groups of any size are searched beside an answer with no given degree, and the share of the time.
_FREE_GPUS, _FREE_SHARE = 32, 0.25
_DEGREES = ("tensor", "pipeline", "virtual", "data", "expert", "context")
#: Deterministic seconds charged for each operation ordered by a known schedule.
_PER_OPERATION = 5e-5


class _Grid(Candidate[GridPipeline]):
    """A grid with its best known step."""

    @property
    def value(self) -> float:
        return super().value if self.best is None else self.best.value + self.of.end(self.best).seconds


class _GridSearch(Portfolio[GridPipeline]):
    """Grids tried by rising estimate; with a ``tool``, only schedules that it can run."""

    def __init__(self, spec: Spec, space: GridSpace, budget: Budget, on_progress: Callable[[Progress], None],
                 tool: Tool | None = None, solve: Solve = solve_case) -> None:
        super().__init__(budget, "makespan", on_progress)
        self.tool, self.solve = tool, solve
        self.spec, self.space = spec, space
        self.listed = 0
        self._beside = float("inf")  # the least bound of grids that are not looked at
        self.left_out = False

    @property
    def beside(self) -> float:
        return self._beside

    def look(self) -> None:
        """Try the best grids of the first wave, for a first answer; list the others while there is time, and try the
        best of all."""
        fixed = self.space.fixed()
        waves = self.space.waves()
        waiting: list[Grid] = []
        for wave in waves:
            self.listed += len(wave)
            if fixed is not None:
                wave = [replace(grid, degrees=fixed) for grid in wave[:1]]
            waiting += wave if self.leader is not None else self._look_at(wave, _FIRST)
            limited = self.budget.deterministic is not None
            if self.leader is not None and not limited and self.budget.elapsed > _LISTING * self.budget.seconds:
                self.left_out = next(waves, None) is not None
                break
        self._look_at(sorted(waiting, key=lambda grid: grid.estimate), _LOOKED)

    def _look_at(self, grids: list[Grid], most: int) -> list[Grid]:
        """Try ``grids`` by rising estimate until ``most`` of them have a schedule; returns the others."""
        left: list[Grid] = []
        for grid in grids:
            late = self.leader is not None and (most == 0 or self.budget.spent
                                                or grid.estimate > _FAR * self.best)
            if late or grid.bound >= self.best:
                left.append(grid)
                continue
            entry = _Grid(GridPipeline(self.space, self.spec, grid), grid.bound)
            self.entries.append(entry)
            most -= self._tried(entry)
        self._beside = min([grid.bound for grid in left], default=float("inf"))
        return left

    def _tried(self, entry: _Grid) -> bool:
        """Try known schedules on an even cut; whether one fits."""
        for placement in entry.of.placements:
            if self.leader is not None and self.budget.spent:
                break
            made = self._in_tool(_known(placement, entry.of.pipeline.micro_batches))
            self.budget.deterministic_used += (_PER_OPERATION * len(placement.problem.blocks)
                                               * entry.of.pipeline.micro_batches)
            if made is None or (entry.found is not None and made.makespan >= entry.found.makespan):
                continue
            before, entry.found = self.best, made
            if entry.value < before:
                self.follow(entry)
                self.on_progress(Progress(  # no bound on all grids yet
                    self.labelled(entry, made).with_value_bound(0.0), self.budget.elapsed, "baselines"))
        return entry.found is not None

    def _in_tool(self, made: Schedule | None) -> Schedule | None:
        """``made`` as run by the tool, if it can."""
        if made is None or self.tool is None:
            return made
        with suppress(ValueError):
            found = self.tool.run(made).schedule
            bound = load_bound(made.problem, made.micro_batches)  # of any order on these stages
            return replace(found, makespan_bound=min(bound, found.makespan))
        return None

    def search(self, options: SearchOptions) -> None:
        """weft's own search inside the best grids, limited to schedules that the tool can run."""
        ranked = sorted((entry for entry in self.entries if entry.found is not None), key=lambda entry: entry.value)
        if not ranked:  # nothing fits an even cut
            ranked = sorted(self.entries, key=lambda entry: entry.of.grid.estimate)
        effort = options.effort
        open_entries = [entry for entry in ranked[:_SEARCHED] if not self.is_beaten(entry)]
        for number, entry in enumerate(open_entries, start=1):
            share = 1.0 if number == len(open_entries) else _SHARE
            if self.must_end or self.is_beaten(entry):
                continue
            given = options.shortened(share) if effort is None else replace(options, effort=effort * share)
            effort = None if effort is None else effort * (1 - share)
            self.take(entry, self.solve, grid_case(entry.of), given)

    def labelled(self, candidate: Candidate[GridPipeline], schedule: Schedule) -> Schedule:
        return labelled(candidate.of, schedule)

    def result(self) -> Schedule:
        """The best, with the bound over all grids listed."""
        leader = self.leader
        if leader is None or leader.best is None:
            raise self.nothing(self.spec.name)
        found = self.labelled(leader, leader.best)
        others = sorted((entry for entry in self.entries if entry is not leader and entry.best is not None),
                        key=lambda entry: entry.value)[:5]
        grid = {**found.solver["grid"], "listed": self.listed, "looked_at": len(self.entries),
                "bound_over_grids": self.bound, "not_all_listed": self.left_out,
                "others": [{"title": entry.of.grid.degrees.title, "step": entry.value, "bound": entry.bound}
                           for entry in others]}
        known = [[round(self.budget.elapsed, 3), found.makespan, found.makespan_bound]]  # not improved by any search
        return found.with_solver(grid=grid, history=found.solver.get("history", known))


def solve_grid(spec: Spec, options: SearchOptions, on_progress: Callable[[Progress], None] = lambda _: None,
               tool: Tool | None = None, solve: Solve = solve_case) -> Schedule:
    """The schedule of the best grid's pipeline; ``solver["grid"]`` states the grid and its step time. If no degree is
    given, it also states, for few GPUs, the time with groups of any size. ``tool``: the tool that must be able to run
    it, and ``solve``: the function that finds a pipeline's best schedule that the tool can run.

    Raises :class:`~weft.models.spec.spec.SpecError` for incompatible degrees,
    :class:`~weft.solver.feasibility.infeasible.Infeasible` if nothing fits, and ``ValueError`` for another objective
    than the makespan.
    """
    if options.objective != "makespan":
        raise ValueError(f"objective is {options.objective!r}, and grids (parallel) are searched for the makespan: "
                         "leave it out")
    require_alike(options)
    space = grid_space(spec)
    is_free = tool is None and space.gpus <= _FREE_GPUS and not any(getattr(space.asked, name) for name in _DEGREES)
    if tool is not None:
        space = replace(space, zeros=tool.zero)
    own = options.limited(1 - _FREE_SHARE) if is_free else options
    search = _GridSearch(spec, space, own.budget(), on_progress, tool, solve)
    with search.budget.kept(lambda: search.leader is not None):
        search.look()
        search.search(own)
    found = search.result()
    if tool is None and "tools" not in found.solver:  # a known schedule, not improved by any search
        found = found.with_solver(**elsewhere(found, ()))
    return _beside_free_groups(found, spec, options) if is_free else found


def labelled(of: GridPipeline, schedule: Schedule) -> Schedule:
    """``schedule`` with its grid's entries, on devices named after the GPUs they represent."""
    degrees, end = of.grid.degrees, of.end(schedule)
    stages = len(schedule.solver["layers_of_stage"])
    degrees = replace(degrees, virtual=stages // degrees.pipeline)
    problem = schedule.problem
    devices = tuple(replace(device, name=gpu_name(range(r * degrees.of_stage, (r + 1) * degrees.of_stage)))
                    for r, device in enumerate(problem.devices))
    step = schedule.makespan + end.seconds
    layers = of.space.ranks.of(degrees)
    device = of.space.links.device
    flops = 3 * sum(layer.flops for layer in layers) * degrees.data * schedule.micro_batches
    return replace(schedule, problem=replace(problem, devices=devices)).with_solver(grid={
        **asdict(degrees), "title": degrees.title, "micro_batches": schedule.micro_batches, "gpus": degrees.gpus,
        "step": step, "pipeline_time": schedule.makespan, "end": asdict(end),
        "model_flops_utilization": flops / (step * degrees.gpus * device.flops[of.space.ranks.dtype]),
        "bound": min(step, max(of.grid.bound, float(schedule.solver.get("bound_over_placements", 0.0))))})


def _beside_free_groups(found: Schedule, spec: Spec, options: SearchOptions) -> Schedule:
    """``found`` with the time of the best groups of any size found in the remaining time, without the end of the
    step."""
    given = replace(options.limited(_FREE_SHARE), time_limit=options.left).restarted()
    try:
        with given.preparing():
            case = case_of(spec.model_copy(update={"parallel": None}))
        free = solve_case(case, given)
    except (Infeasible, OutOfTime, SpecError):
        return found
    except KeyboardInterrupt:
        return found.with_solver(interrupted=True)
    interrupted = {"interrupted": True} if free.solver.get("interrupted") else {}
    return found.with_solver(**interrupted, grid={**found.solver["grid"], "free_groups": free.makespan,
                                                  "free_placement": free.solver.get("placement", "")})


def _known(placement: CasePlacement, micro_batches: int) -> Schedule | None:
    """The frameworks' schedule; ``None`` if it does not fit."""
    problem, name = placement.problem, _published(placement)
    with suppress(NotApplicable, Infeasible):
        return placement.ordered(micro_batches, name, orders_within_memory(problem, micro_batches) if name == "1f1b"
                                 else BASELINES[name].orders(problem, micro_batches))
    return None


def _published(placement: CasePlacement) -> str:
    stages, devices = len(placement.details["layers_of_stage"]), len(placement.problem.devices)
    if stages == devices:
        return "1f1b"
    is_split = any(block.name.startswith("W") for block in placement.problem.blocks)
    return "interleaved-zb" if is_split else "interleaved"
