"""The best schedule that one tool can run: only its placements are searched, in its own order if it has one.

For a tool that runs a given order (PyTorch, torchtitan, nnScaler), the ordinary search runs on the placements that it
supports. A tool with its own order (Megatron-LM, DeepSpeed) leaves only the cut open: its order, which does not depend
on the cut, is timed on the listed placements and carried to all cuts, and from the best cut layers are moved while the
step gets shorter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from weft.app.cuts.search import CutDecision, CutSearch
from weft.app.lib.case import Case, CasePlacement, candidate_placement, case_of
from weft.app.lib.options import SearchOptions
from weft.app.lib.sources import MicroBatches, Source, read_source
from weft.app.solving.solve import solve_case
from weft.models.cuts.space import CutSpace
from weft.models.grid.pipeline import even_cut
from weft.models.spec.spec import Spec
from weft.runtime.export.tools import TOOLS, Tool, ToolRun
from weft.solver.bounds.load import load_bound
from weft.solver.control.clock import OutOfTime
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import validate
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Infeasible, NoneFound, Progress

#: Number of cuts listed for each layout, and deterministic seconds for each operation of a timed cut.
_LISTED, _PER_OPERATION = 60_000, 3e-6
#: The same for an operation of a cut that differs by a layer; and the maximum number of moves from one start.
_PER_MOVED, _MOVES = 3e-8, 200
#: The shapes with one GPU a stage, and those with several that any tool can express.
_SINGLE, _TOGETHER = ("chain", "v", "loop", "wave"), ("groups", "tensor")


def solve_for_tool(source: Source, micro_batches: MicroBatches | None, options: SearchOptions,
                   on_progress: Callable[[Progress], None], name: str) -> Schedule:
    """The best schedule that tool ``name`` can run, timed in its order.

    Raises ``ValueError`` for fixed settings that the tool cannot run, and the exceptions of
    :func:`weft.app.solving.solve.solve_case`.
    """
    tool = TOOLS[name]
    if options.objective != "makespan":
        raise ValueError(f"what {tool.title} can run is searched for the makespan, not for {options.objective}: leave "
                         "the objective out")
    with options.preparing():
        spec = read_source(source)
        if isinstance(spec, Spec):
            spec = restricted(spec, tool)
        is_grid = isinstance(spec, Spec) and spec.parallel is not None
        case = None if is_grid else case_of(spec, micro_batches, options)
    if case is None:
        from weft.app.grid import solve_grid

        if micro_batches is not None:
            raise ValueError("micro_batches is what the grid makes of the batch (parallel.micro_batch): leave it out")
        found = solve_grid(spec, options, on_progress, tool, partial(solve_in, tool))  # type: ignore[arg-type]
    else:
        found = solve_in(tool, case, options, on_progress)
    run = tool.run(found)
    return found.with_solver(tool={"name": name, "order": run.order, "gpus_a_rank": run.gpus,
                                   **({"settings": dict(run.settings)} if run.settings else {})})


def solve_in(tool: Tool, case: Case, options: SearchOptions, on_progress: Callable[[Progress], None]) -> Schedule:
    """The best schedule of ``case`` that ``tool`` can run. Raises ``Infeasible`` if it can run none."""
    left: Case | None = None
    with options.budget().limited():
        left = case_for(case, tool)
    if left is None:
        raise NoneFound(f"{case.name}: there was no time to see what {tool.title} can run; give more")
    if tool.own is not None:
        return best_in_own_order(left, tool, options.budget(), on_progress)
    return left.with_reserve(solve_case(left, options, on_progress))


def restricted(spec: Spec, tool: Tool) -> Spec:
    """``spec`` restricted to the placements that ``tool`` supports. Raises ``ValueError`` for other fixed settings,
    with the nearest supported one."""
    placement, given = spec.placement, spec.placement.model_fields_set

    def refuse(what: str, instead: str) -> None:
        raise ValueError(f"{spec.where}: {tool.title} cannot run {what}; {instead}")

    if spec.training is None:
        refuse("inference", "it trains: give training")
    if spec.training is not None and spec.training.lengths is not None:
        refuse("micro-batches that differ (training.lengths)", "leave lengths out")
    allowed = [shape for shape in placement.shapes if _can(tool, shape)]
    if not allowed:
        refuse(f"placement.shapes: {', '.join(placement.shapes)}",
               f"allow {' or '.join(shape for shape in (*_SINGLE, *_TOGETHER) if _can(tool, shape))}")
    if placement.sequence_chunks:
        refuse("micro-batches in chunks of their sequence (placement.sequence_chunks)", "leave them out")
    if not tool.any_graph and placement.co_shard:
        refuse("parts of layers in turn (placement.co_shard)", "leave it out")
    if tool.alike and placement.memory == "decide":
        refuse("memory decided operator by operator (placement.memory: decide)", "give training.recompute, which is of "
                                                                                "all layers")
    if tool.alike and placement.choices:
        refuse("stages that decide what they keep (placement.choices)", "give training.recompute, which is of all "
                                                                        "layers")
    backward = placement.backward
    if not tool.splits:
        if "backward" in given and "full" not in backward:
            refuse("split backwards (placement.backward: split)", "allow full")
        backward = ("full",)
    if spec.parallel is not None:
        asked = spec.parallel
        if asked.zero not in (None, *tool.zero):
            refuse(f"ZeRO-{asked.zero} beside a pipeline (parallel.zero)",
                   f"it has {', '.join(map(str, tool.zero))}; give one of these, or auto")
        for name in tool.lacks:
            if (getattr(asked, name) or 1) > 1:
                refuse(f"{name} parallelism beside a pipeline (parallel.{name})", "give 1")
        spec = spec.model_copy(update={"parallel": asked.model_copy(update=dict.fromkeys(tool.lacks, 1))})
    return spec.model_copy(update={"placement": placement.model_copy(update={
        "shapes": tuple(allowed), "backward": backward})})


def _can(tool: Tool, shape: str) -> bool:
    if tool.any_graph:
        return shape not in ("data", "x")
    return shape in _TOGETHER or (shape in _SINGLE and (not tool.shapes or shape in tool.shapes))


def case_for(case: Case, tool: Tool) -> Case:
    """``case`` restricted to the placements that ``tool`` can run. Raises ``Infeasible`` if there is none."""
    placements, reason = [], ""
    for placement in case.placements:
        try:
            tool.run(_unordered(placement, case.micro_batches, placement.whole))
        except ValueError as refusal:
            reason = reason or str(refusal)
        else:
            placements.append(placement)
    spaces = tuple(space for space in case.spaces if not tool.shapes or space.ground.layout.shape in tool.shapes)
    if not placements and not spaces:
        raise Infeasible(reason or f"{case.name}: nothing is left that {tool.title} can run: " + "; ".join(
            f"{shape}: {why}" for shape, why in case.refused))
    return replace(case, placements=tuple(placements), spaces=spaces, whole_model=(),
                   open=() if tool.alike else case.open)


def _unordered(placement: CasePlacement, micro_batches: int, problem: Problem) -> Schedule:
    """The part of a placement needed by a tool with its own order."""
    return Schedule(problem, micro_batches, (), 0.0, solver=placement.details)


def best_in_own_order(case: Case, tool: Tool, budget: Budget, on_progress: Callable[[Progress], None],
                      starts: Sequence[tuple[int, ...]] = ()) -> Schedule:
    """The best of ``case``, over placements and cuts that ``tool`` can run, in its own order, with a bound over all of
    them. ``starts``: initial cuts for moving layers, beside even ones: borders of stages.

    Raises ``Infeasible`` if its order fits none, ``NoneFound`` if there was no time for any.
    """
    search = _OwnOrder(case, tool, budget, on_progress)
    for placement in sorted(case.placements, key=lambda placement: load_bound(placement.problem, case.micro_batches)):
        if search.best is not None and budget.spent:
            break
        search.look_at(placement)
    search.look_at_cuts(starts)
    return search.result()


class _OwnOrder:
    """The results so far."""

    def __init__(self, case: Case, tool: Tool, budget: Budget, on_progress: Callable[[Progress], None]) -> None:
        self.case, self.tool, self.budget, self.on_progress = case, tool, budget, on_progress
        self.best: Schedule | None = None
        self.refusal = ""
        self.bounds: list[float] = []
        self.cuts_bound = math.inf

    @property
    def makespan(self) -> float:
        return math.inf if self.best is None else self.best.makespan

    def look_at(self, placement: CasePlacement) -> ToolRun | None:
        """Time the tool's order on ``placement``; returns its run, if it fits."""
        count = self.case.micro_batches
        bound = load_bound(placement.problem, count)
        self.bounds.append(bound)
        if bound >= self.makespan * (1 - RELATIVE_TOLERANCE):
            return None
        self.budget.deterministic_used += _PER_OPERATION * count * len(placement.problem.blocks)
        try:
            run = self.tool.run(_unordered(placement, count, placement.problem))
        except ValueError as refusal:
            self.refusal = self.refusal or str(refusal)
            return None
        if run.schedule.makespan < self.makespan:
            made = replace(run.schedule, makespan_bound=min(bound, run.schedule.makespan))
            self.best = replace(placement, problem=made.problem).label(made)
            validate(self.best)
            self.on_progress(Progress(self.best, self.budget.elapsed, f"{self.tool.title}'s order"))
        return run

    def look_at_cuts(self, starts: Sequence[tuple[int, ...]] = ()) -> None:
        """The tool's order on cuts with one GPU a stage: from ``starts`` and even ones a layer at a time, then on all
        that can be listed."""
        if not self.case.spaces:
            return
        cuts = CutSearch(self.case.spaces, self.case.micro_batches, self.budget)
        with suppress(OutOfTime), self.budget.limited():
            for space in self.case.spaces:
                layout = space.ground.layout
                even = even_cut(space.ground.layers, layout.stages)
                for start in dict.fromkeys([*(start for start in starts if len(start) == len(even)), even]):
                    self._descend(cuts, space, start)
            most = self.makespan if self.best is not None else 1e9 * max(space.floor for space in self.case.spaces)
            cuts.open(most, _LISTED)
            for space in cuts.worth_trying:
                self._carry(cuts, space)
        cuts.narrow(self.makespan)
        self.cuts_bound = cuts.bound

    def _carry(self, cuts: CutSearch, space: CutSpace) -> None:
        """Carry the order to all listed cuts, and continue from the best of them."""
        start = next(iter(space.some(1)), None)
        order = None if start is None or self.tool.own is None else next(self.tool.own(
            Pipeline.of(CutDecision(cuts, space, start).problem), self.case.micro_batches), None)
        if start is not None and order is not None:
            carried = cuts.carried(CutDecision(cuts, space, start), order.orders)
            self._descend(cuts, space, start if carried is None else carried.decision.borders)

    def _descend(self, cuts: CutSearch, space: CutSpace, borders: tuple[int, ...]) -> None:
        """Move layers, starting from ``borders``, while the tool's step gets shorter and fits."""
        for _ in range(_MOVES):
            try:
                placement = candidate_placement(space.candidate(borders))
            except ValueError:  # weights alone do not fit
                return
            run = self.look_at(placement)
            if self.budget.spent or self.tool.own is None:
                return
            pipeline = Pipeline.of(placement.problem)
            made = next(self.tool.own(pipeline, self.case.micro_batches), None)
            if made is None:
                return
            orders = made.orders if run is None else run.schedule.orders
            moves = len(borders)**2
            self.budget.deterministic_used += _PER_MOVED * moves * cuts.operations(space)
            following = space.shorter(borders, pipeline, orders)
            if following is None:
                return
            borders = following

    def result(self) -> Schedule:
        if self.best is None:
            if not self.refusal and self.budget.spent:
                raise NoneFound(f"{self.case.name}: no time was left for cuts in {self.tool.title}'s order; give more")
            raise Infeasible(self.refusal or f"{self.case.name}: nothing fits in an order of {self.tool.title}")
        bound = min([self.makespan, self.cuts_bound, *self.bounds])
        return self.case.with_reserve(self.best.with_solver(
            name=f"{self.tool.name}'s order", covered=self.case.coverage.text(), bound_over_placements=bound,
            placements=len(self.case.placements)))
