"""Solving a source for any objective: a step by the search over placements, a latency by the latency search."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.app.lib.options import OVERLAP, SearchOptions
from weft.app.solving.opening import solve_source
from weft.solver.problem import Number
from weft.solver.schedule import Schedule
from weft.solver.step.report import Progress

if TYPE_CHECKING:
    from weft.app.latency.serving import Serving
    from weft.app.lib.sources import MicroBatches, Source


def solve_for(
    source: Source,
    micro_batches: MicroBatches | None,
    options: SearchOptions,
    on_progress: Callable[[Progress], None],
    *,
    throughput: Number | str | None = None,
    period: Number | str | None = None,
    overlap: str = "none",
) -> Schedule:
    """See :func:`weft.solve`."""
    if overlap not in OVERLAP:
        raise ValueError(f"overlap is {overlap!r}, it must be one of {', '.join(OVERLAP)}")
    if options.tool is not None:
        if overlap != "none" or throughput is not None or period is not None:
            raise ValueError("what a tool can run is searched for the makespan, without overlap: leave overlap and "
                             "floors out")
        from weft.app.tools.solve_for import solve_for_tool

        return solve_for_tool(source, micro_batches, options, on_progress, options.tool)
    if overlap == "auto":
        from weft.app.overlap import solve_overlapped

        if throughput is not None or period is not None:
            raise ValueError("throughput and period are floors for the objective 'latency', for which overlap is not "
                             "searched: leave overlap or the floor out")
        return solve_overlapped(source, micro_batches, options, on_progress)
    has_floor = throughput is not None or period is not None
    if options.objective != "latency":
        if has_floor:
            raise ValueError(f"throughput and period are floors for the objective 'latency', not for "
                             f"{options.objective!r}: leave them out, or search for the latency")
        return solve_source(source, micro_batches, options, on_progress)
    if not has_floor:
        raise ValueError("the objective 'latency' needs a floor of throughput: give the throughput (micro-batches per "
                         "time, like 12.5/s) or the longest period (like 80 ms)")
    from weft.app.latency.search import serve_source

    def told(found: Serving) -> None:
        for point in found.points[:1]:
            on_progress(Progress(_named(point.schedule), found.seconds, "latency"))

    found = serve_source(source, micro_batches, options, told, throughput=throughput, period=period, points=2)
    return _named(found.points[0].schedule)


def _named(schedule: Schedule) -> Schedule:
    return schedule.with_solver(objective="latency")
