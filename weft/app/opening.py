"""A source solved. Of a spec there is a schedule first, on one placement that is soon made; then all placements are
listed and searched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING

from weft.app.lib.case import Placement, candidate_placement, case_of, read_source
from weft.app.lib.options import SearchOptions
from weft.app.solve import solve_case
from weft.solver.baselines.lib.at_once import at_once
from weft.solver.control.clock import OutOfTime
from weft.solver.control.garbage import seldom_collected
from weft.solver.control.stopping import breakable
from weft.solver.judge.validate import violations
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import MAX_OPERATIONS, NoneFound, Progress
from weft.solver.timing import time_orders
from weft.solver.wide.problem import WideProblem

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source
    from weft.models.spec.spec import Spec

__all__ = ["openings", "solve_source"]


@seldom_collected()
def solve_source(
    source: Source,
    micro_batches: MicroBatches | None,
    options: SearchOptions,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Schedule:
    """See :func:`weft.solve`."""
    with options.preparing():
        source = read_source(source)
    first: Schedule | None = None

    def told(progress: Progress) -> None:
        if first is None or progress.best.makespan <= first.makespan:
            on_progress(progress)

    try:
        with options.preparing():
            for made in openings(source, micro_batches, options):
                if first is None or made.makespan < first.makespan:
                    first = made
                    on_progress(Progress(first, options.budget().elapsed, "baselines"))
        with options.preparing(), nullcontext() if first is None else breakable():
            case = case_of(source, micro_batches, options)
    except (NoneFound, OutOfTime):
        if first is None:
            raise
        return first  # there was no time for the other placements
    except KeyboardInterrupt:
        if first is None:
            raise
        return first.with_solver(interrupted=True)
    found = case.with_reserve(solve_case(case, options, told))
    return found if first is None or found.makespan <= first.makespan else first


def openings(source: Spec | Problem | WideProblem, micro_batches: MicroBatches | None,
             options: SearchOptions) -> Iterator[Schedule]:
    """Schedules of a spec that are made at once, each on a placement of its own, before other placements are made.

    None for other sources and objectives, where there is no such placement, and where the spec is refused or asks for
    what may be refused: what is wrong with it is said when all placements are listed.
    """
    if isinstance(source, Problem | WideProblem) or options.objective != "makespan":
        return
    from weft.models.candidates.build import first_candidates

    count, asked = micro_batches or source.run.micro_batches, source.placement
    is_plain = asked.memory != "decide" and not (asked.co_shard or asked.sequence_chunks or asked.choices)
    has_lengths = source.training is not None and source.training.lengths is not None
    if not is_plain or has_lengths or not isinstance(count, int) or count < 1:
        return
    with suppress(ValueError, OutOfTime):
        for candidate in first_candidates(source):
            if count * len(candidate.problem.blocks) <= MAX_OPERATIONS:
                yield from islice(_valid(candidate_placement(candidate), count), 1)


def _valid(placement: Placement, micro_batches: int) -> Iterator[Schedule]:
    problem = placement.problem
    for name, orders in at_once(problem, micro_batches):
        made = Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), 0.0, solver={"name": name})
        if not violations(made, limit=1):
            yield placement.label(made)
