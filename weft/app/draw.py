"""Pictures and traces of a schedule, chosen by the file's ending."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from weft.solver.schedule import Schedule

if TYPE_CHECKING:
    from weft.runtime.plan.timeline import Timeline


def draw_schedule(
    schedule: Schedule,
    path: str | os.PathLike[str],
    *,
    baseline: Schedule | None = None,
    measured: str | os.PathLike[str] | None = None,
    title: str | None = None,
    critical: bool = False,
) -> None:
    """See :func:`weft.draw`."""
    from weft.runtime.plan.timeline import load_timeline

    timeline: Timeline | None = None
    if measured is not None:
        timeline = load_timeline(measured)
        _require_run_of(schedule, timeline, os.fspath(measured))
    if Path(path).suffix.lower() == ".json":
        if critical:
            raise ValueError(f"{os.fspath(path)}: a trace cannot mark the critical path; draw .html, .svg or .png")
        from weft.runtime.export.perfetto import save_trace

        save_trace(schedule, path, measured=timeline)
        return
    from weft.figures import draw

    draw(schedule, path, baseline=baseline, measured=timeline, title=title, critical=critical)


def _require_run_of(schedule: Schedule, timeline: Timeline, name: str) -> None:
    """Raise ``ValueError`` unless ``timeline`` contains exactly every block of every micro-batch on every rank that
    runs it. Its plan's digest is not sufficient: a plan signed for a model has another one."""
    from weft.runtime.plan.timeline import places

    planned = set(places(schedule))
    found = {(o.block, o.micro_batch, o.rank) for o in timeline.operations}
    for ran, block, micro_batch, rank in [("holds", *least) for least in sorted(found - planned)[:1]] + [
            ("lacks", *least) for least in sorted(planned - found)[:1]]:
        raise ValueError(f"{name}: {ran} block {block!r} of micro-batch {micro_batch} on rank {rank}, other than the "
                         f"schedule of {schedule.problem.name!r}: it was measured on another plan")
