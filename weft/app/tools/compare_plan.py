"""A user's plan compared with the best that weft finds on the same degrees and costs: the difference, and its
causes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from weft.app.grid import solve_grid
from weft.app.lib.case import Case, case_of
from weft.app.lib.grid_pipeline import is_open
from weft.app.lib.options import SearchOptions
from weft.app.lib.results import Tabular
from weft.app.lib.sources import PathLike, Source, read_source
from weft.app.solving.solve import solve_case
from weft.app.tools.given import GivenPlan, given_plan, given_schedule, read_arguments, read_plan
from weft.app.tools.solve_for import best_in_own_order, restricted
from weft.models.cuts.spaces import cut_spaces
from weft.models.layers.cluster import model_cluster
from weft.models.spec.spec import Spec
from weft.runtime.export.tools import TOOLS, Tool, ToolRun
from weft.runtime.export.tools.tool import letters_of_names
from weft.solver.control.clock import unwatched
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.io.megatron_layout import layout_text
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Number
from weft.solver.schedule import Schedule
from weft.solver.step.search import Progress
from weft.text.tables import table_of
from weft.text.units import each_text, memory_text, shown_memory, shown_time, time_text

#: Shares of the time: the plan's own cut in any order, the tool's best cut, and everything; and for the last if a
#: search of the best grid follows.
_SHARES = (0.2, 0.3, 1.0, 0.5)
#: Minimum chunks a rank in weft's own search, and bytes of a GPU on which everything fits.
_CHUNKS, _ROOMY = 3, 10**15
#: A rank this much busier than the average limits a pipeline.
_UNEVEN = 0.01


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan's figures: ``step`` in seconds including the end of the step, ``load`` the work of each rank on a
    micro-batch, ``peak`` bytes of each GPU of a rank, static memory included. ``bubble``: the idle share of the step.
    The best grid (``name`` is "grid") has its own degrees, stated in its title."""

    name: str
    title: str
    order: str
    layout: str
    step: float
    end: float
    bubble: float
    load: tuple[float, ...]
    peak: tuple[Number, ...]
    fits: bool
    bound: float | None = None
    micro_batches: int = 1


@dataclass(frozen=True)
class PlanComparison(Tabular):
    """The result of :func:`weft.compare_plan`: ``rows``, the plan first; ``schedules`` by their names. ``degrees``:
    shared by all rows."""

    name: str
    degrees: str
    micro_batches: int
    capacity: Number | None
    rows: tuple[PlanRow, ...]
    schedules: Mapping[str, Schedule]
    left_out: Mapping[str, str]

    @property
    def plan(self) -> PlanRow:
        """The given plan."""
        return self.rows[0]

    @property
    def best(self) -> PlanRow:
        """weft's best schedule that fits; the plan if none does."""
        return min((row for row in self.rows if row.fits), key=lambda row: row.step, default=self.plan)

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data, and the reasons."""
        return {"name": self.name, "degrees": self.degrees, "micro_batches": self.micro_batches,
                "rows": [asdict(row) for row in self.rows], "left_out": dict(self.left_out), "why": self.why()}

    def table(self) -> Any:
        """The table, to be printed by rich."""
        table = table_of(f"{self.name}: {self.degrees}, {self.micro_batches} micro-batches", (
            "plan", "order", "ms per step", "against the plan", "bubble", f"peak {memory_text(1, 'B')[1]} by rank",
            "fits"), ("plan", "order"), self.caption())
        for row in self.rows:
            table.add_row(row.title, row.order, time_text(row.step, "s")[0],
                          "" if row is self.plan else f"{row.step / self.plan.step - 1:+.1%}", f"{row.bubble:.1%}",
                          each_text(list(row.peak), "B"), "yes" if row.fits else "no",
                          style="bold" if row is self.best else None)
        return table

    def caption(self) -> str:
        """The layouts, and the causes of the plan's time."""
        layouts: dict[str, list[str]] = {}
        for row in self.rows:
            layouts.setdefault(row.layout, []).append(row.title)
        return "\n".join([*(f"{', '.join(titles)}: {text}" for text, titles in layouts.items()), *self.why(),
                          *(f"{title} left out: {reason}" for title, reason in self.left_out.items())])

    def why(self) -> list[str]:
        """The limit of the plan, and the differences of the best, a sentence each."""
        plan, best = self.plan, self.best
        lines = [_limit(plan, self.micro_batches)]
        if not plan.fits:
            worst = max(range(len(plan.peak)), key=lambda rank: plan.peak[rank])
            lines.append(f"the plan does not fit: rank {worst} needs {shown_memory(plan.peak[worst])}"
                         + ("" if self.capacity is None else f", a GPU has {shown_memory(self.capacity)}"))
        if best is plan:
            lines.append("nothing better was found on these degrees")
            return lines
        worked = [shown_time(max(row.load) * row.micro_batches) for row in (plan, best)]
        lines.append(f"{best.title} ({best.order}) is {1 - best.step / plan.step:.1%} shorter: its busiest rank works "
                     f"{worked[1]} a step, the plan's {worked[0]}; bubble "
                     f"{best.bubble:.1%} against {plan.bubble:.1%}; fullest GPU {shown_memory(max(best.peak))} against "
                     f"{shown_memory(max(plan.peak))}")
        for row in self.rows:
            if row.bound is not None:
                which = "of these layers on these degrees" if row.name != "grid" else "on any grid that was listed"
                lines.append(f"no cut {which}, in any order searched, is shorter than {shown_time(row.bound)} (the "
                             f"plan is {plan.step / row.bound - 1:.1%} above)")
        return lines


def _limit(row: PlanRow, micro_batches: int) -> str:
    """The composition of a plan's step: the busiest rank's work, and the rest."""
    busiest = max(range(len(row.load)), key=lambda rank: row.load[rank])
    average = sum(row.load) / len(row.load)
    work = row.load[busiest] * micro_batches
    much = row.load[busiest] / average - 1
    which = f"rank {busiest} works {shown_time(row.load[busiest])} a micro-batch" + (
        f", {much:.1%} more than the average rank" if much > _UNEVEN else ", about as long as every rank")
    rest = row.step - row.end - work
    return (f"{row.title}: {which}: {shown_time(work)} of the {shown_time(row.step)}; {shown_time(max(0.0, rest))} are "
            f"ramp and waiting" + (f", {shown_time(row.end)} the end of the step" if row.end else ""))


def plan_compared(source: Source, options: SearchOptions, on_progress: Callable[[Progress], None], *,
                  layout: str | None, megatron: str | None, plan: PathLike | None = None) -> PlanComparison:
    """See :func:`weft.compare_plan`."""
    if layout is None and megatron is None and plan is None:
        raise ValueError("no plan is given: give a layout of Megatron-LM, its arguments, or a file with a plan")
    if plan is not None and (layout is not None or megatron is not None):
        raise ValueError("the plan is given twice, in a file and as Megatron-LM's layout or arguments: leave one out")
    spec = read_source(source)
    if not isinstance(spec, Spec):
        raise ValueError("a plan is of a model's layers, and this is a block problem: give a model spec")
    if options.objective != "makespan":
        raise ValueError(f"a plan is compared by its makespan, not by {options.objective}: leave the objective out")
    if spec.training is None:
        raise ValueError(f"{spec.where}: a plan is of training, and this is inference")
    arguments = None if megatron is None else read_arguments(megatron)
    with options.preparing():
        found = read_plan(spec, plan) if plan is not None else given_plan(spec, layout=layout, arguments=arguments)
    return _Comparing(found, TOOLS[found.tool], spec, options, on_progress).result()


class _Comparing:
    """The rows of a comparison, one search after the other."""

    def __init__(self, plan: GivenPlan, tool: Tool, spec: Spec, options: SearchOptions,
                 on_progress: Callable[[Progress], None]) -> None:
        self.plan, self.tool, self.spec, self.options, self.on_progress = plan, tool, spec, options, on_progress
        self.rows: list[PlanRow] = []
        self.schedules: dict[str, Schedule] = {}
        self.left_out: dict[str, str] = {}

    def result(self) -> PlanComparison:
        own, open_ = self._given(), is_open(self.spec)
        pipeline = self.plan.piped.pipeline
        self._search("given-order", "the same cut, weft's order", self.plan.spec, _SHARES[0])
        if self.tool.own is not None:
            self._best_cut()
        self._search("weft", "weft's best", pipeline.model_copy(update={"placement": pipeline.placement.model_copy(
            update={"shapes": ("chain", "v", "loop", "wave"), "chunks": self._chunks(pipeline.placement.chunks)})}),
            _SHARES[3 if open_ else 2])
        if open_:
            with suppress(Infeasible):
                self._best_grid()
        return PlanComparison(self.spec.name, self.plan.piped.title, own.micro_batches,
                              min(model_cluster(self.plan.piped.pipeline.cluster).available), tuple(self.rows),
                              self.schedules, self.left_out)

    def _chunks(self, least: int = _CHUNKS) -> int:
        """The chunks a rank allowed in a search: the plan's number, or ``least`` if there are enough layers."""
        gpus, stages = self.plan.piped.pipeline.cluster.gpus, self.plan.stages
        return max(len(stages) // gpus, min(max(least, _CHUNKS), sum(map(len, stages)) // gpus))

    def _given(self) -> Schedule:
        """The plan in the tool's own order; if it does not fit, on GPUs with enough memory."""
        spec = restricted(self.plan.spec, self.tool)
        try:
            run, fits = self._run(spec), True
        except (Infeasible, ValueError):
            run, fits = self._run(spec.model_copy(update={"cluster": spec.cluster.model_copy(update={
                "memory": (_ROOMY,)})})), False
        order = (run.order or Path(self.plan.order).name) + "".join(f", groups of {n}" for n in run.settings.values())
        self._row("plan", "the plan", order, run.schedule, fits=fits)
        return run.schedule

    def _run(self, spec: Spec) -> ToolRun:
        with unwatched():  # one cut alone: without it there is nothing to compare
            case = case_of(spec)
        return self.tool.run(given_schedule(self.plan, case))

    def _best_cut(self) -> None:
        """A row of the best schedule that the tool can run: every cut, in at most as many chunks as the plan."""
        options, plan, pipeline = self.options.shortened(_SHARES[1]), self.plan, self.plan.piped.pipeline
        spec = restricted(pipeline.model_copy(update={"placement": pipeline.placement.model_copy(update={
            "shapes": ("chain", "loop"), "chunks": self._chunks()})}), self.tool)
        title = f"{self.tool.title}'s best cut"
        try:
            with options.preparing():
                case = Case(spec.name, (), spec.micro_batches, spaces=tuple(
                    space for space in cut_spaces(spec, spec.micro_batches)
                    if self.tool.shapes and space.ground.layout.shape in self.tool.shapes))
            found = best_in_own_order(case, self.tool, options.budget(), self.on_progress,
                                      [(0, *accumulate(map(len, plan.stages)))])
        except Infeasible as reason:
            self.left_out[title] = str(reason)
            return
        self._row("tool", title, self.tool.run(found).order, found, fits=True)

    def _search(self, name: str, title: str, spec: Spec, share: float) -> None:
        """A row of the best schedule found for ``spec`` in any order, or found before if that is better."""
        options = self.options.shortened(share)
        found: Schedule | None = None
        try:
            with options.preparing():
                case = case_of(spec)
            found = solve_case(case, options, self.on_progress)
        except Infeasible as reason:
            self.left_out[title] = str(reason)
        if name == "weft":
            known = [self.schedules[row.name] for row in self.rows if row.fits]
            found = min([*known, *([] if found is None else [found])], default=None,
                        key=lambda schedule: schedule.makespan + self.plan.piped.end(schedule))
        if found is None:
            return
        self.left_out.pop(title, None)
        shape = Pipeline.of(found.problem).shape
        self._row(name, title, f"weft's, {'V' if shape == 'v' else shape}", found, fits=True,
                  bound=found.solver.get("bound_over_placements") if name == "weft" else None)

    def _best_grid(self) -> None:
        """A row of the best grid of all, if it is better than the best found on the plan's grid."""
        found = solve_grid(self.spec, self.options, self.on_progress)
        grid, title = found.solver["grid"], "weft's best grid"
        if grid["step"] < min((row.step for row in self.rows if row.fits), default=math.inf):
            self._row("grid", f"{title}, {grid['title']}", "weft's", found, fits=True, bound=grid["bound_over_grids"])
        else:
            self.left_out[title] = (f"none was found that is better than these degrees; {grid['title']} takes "
                                    f"{shown_time(grid['step'])}")

    def _row(self, name: str, title: str, order: str, found: Schedule, *, fits: bool,
             bound: float | None = None) -> None:
        problem, layers = found.problem, found.solver["layers_of_stage"]
        letters = iter(letters_of_names([name for names in layers for name in names]))
        end = found.solver["grid"]["end"]["seconds"] if name == "grid" else self.plan.piped.end(found)
        step = found.makespan + end
        load = tuple(sum(problem.blocks[block].duration for block in blocks) for blocks in problem.blocks_on)
        self.schedules[name] = found
        self.rows.append(PlanRow(
            name, title, order, layout_text(["".join(next(letters) for _ in names) for names in layers]), step, end,
            1 - sum(load) / len(load) * found.micro_batches / step, tuple(map(float, load)), found.peak_with_static,
            fits, bound, found.micro_batches))
