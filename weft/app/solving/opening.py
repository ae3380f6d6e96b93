"""Solving a source. A spec first gets a schedule on a placement that is quick to make; then all placements are listed,
and 1F1B is reported on each before the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from weft.app.lib.case import Case, candidate_placement, case_of
from weft.app.lib.options import SearchOptions
from weft.app.lib.sources import read_source
from weft.app.solving.solve import solve_case
from weft.solver.baselines.lib.at_once import at_once
from weft.solver.baselines.lib.base import NotApplicable
from weft.solver.baselines.one_f_one_b import orders_within_memory
from weft.solver.bounds.load import load_bound
from weft.solver.control.clock import OutOfTime
from weft.solver.control.garbage import seldom_collected
from weft.solver.control.stopping import breakable
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import MAX_OPERATIONS, NoneFound, Progress, is_large

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source
    from weft.models.spec.spec import Spec


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
    if not isinstance(source, Problem) and source.parallel is not None:
        from weft.app.grid import solve_grid

        if micro_batches is not None:
            raise ValueError("micro_batches is what the grid makes of the batch (parallel.micro_batch): leave it out")
        return solve_grid(source, options, on_progress)
    first: Schedule | None = None

    def take(made: Schedule) -> None:
        nonlocal first
        if first is None or made.makespan < first.makespan:
            first = made
            # A proof for its placement does not cover the others yet.
            on_progress(Progress(first.with_value_bound(0.0), options.budget().elapsed, "baselines"))

    def told(progress: Progress) -> None:
        if first is None or progress.best.makespan <= first.makespan:
            on_progress(progress)

    try:
        with options.preparing():
            for made in openings(source, micro_batches, options):
                take(made)
        with options.preparing(), nullcontext() if first is None else breakable():
            case = case_of(source, micro_batches, options)
            for made in _on_all(case, source, options):
                take(made)
    except (NoneFound, OutOfTime):
        if first is None:
            raise
        return first  # there was no time for the other placements
    except KeyboardInterrupt:
        if first is None:
            raise
        return first.with_solver(interrupted=True)
    found = case.with_reserve(solve_case(case, options, told))
    if first is None or found.makespan <= first.makespan * (1 + RELATIVE_TOLERANCE):
        return found
    bound = float(found.solver.get("bound_over_placements", 0.0))
    return replace(first, makespan_bound=min(first.makespan, max(first.makespan_bound, bound)))


def openings(source: Spec | Problem, micro_batches: MicroBatches | None,
             options: SearchOptions) -> Iterator[Schedule]:
    """Schedules of a spec that are quick to make, each on a separate placement, before other placements are made.

    None for other sources and objectives, without such a placement, and if the spec is or may be refused: its errors
    are reported when all placements are listed.
    """
    if isinstance(source, Problem) or options.objective != "makespan":
        return
    from weft.models.candidates.build import first_candidates

    count, asked = micro_batches or source.run.micro_batches, source.placement
    is_plain = asked.memory != "decide" and not (asked.co_shard or asked.sequence_chunks or asked.choices)
    has_lengths = source.training is not None and source.training.lengths is not None
    if not is_plain or has_lengths or not isinstance(count, int) or count < 1:
        return
    with suppress(ValueError, OutOfTime):
        for candidate in first_candidates(source):
            placement = candidate_placement(candidate)
            if count * len(placement.problem.blocks) <= MAX_OPERATIONS:
                made = (placement.ordered(count, name, orders) for name, orders in at_once(placement.problem, count))
                yield from islice(filter(None, made), 1)


def _on_all(case: Case, source: Spec | Problem, options: SearchOptions) -> Iterator[Schedule]:
    """1F1B on the placements of a spec that support it, least bounds first: known schedules that are searches come
    later, placement by placement."""
    if isinstance(source, Problem) or options.objective != "makespan":
        return
    count = case.micro_batches
    for placement in sorted(case.placements, key=lambda placement: load_bound(placement.problem, count)):
        if placement.rounds is None and placement.replicas == 1 and not is_large(placement.problem, count):
            with suppress(NotApplicable, OutOfTime):
                made = placement.ordered(count, "1f1b", orders_within_memory(placement.problem, count))
                if made is not None:
                    yield made
