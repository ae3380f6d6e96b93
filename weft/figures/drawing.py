"""A schedule, or the search for it, drawn: into a file, or as an Altair chart for a notebook.

Altair is loaded on the first call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weft.figures.formats import ending_of
from weft.solver.io.writing import write_atomically
from weft.solver.schedule import Schedule

if TYPE_CHECKING:
    import altair as alt

    from weft.runtime.plan.timeline import Timeline

__all__ = ["Window", "chart", "draw", "draw_curve"]

#: Which times to draw: ``(from, to)`` in the problem's time unit, everything, or what stays legible.
Window: TypeAlias = tuple[float, float] | Literal["auto", "all"]


def draw(
    schedule: Schedule,
    path: str | os.PathLike[str],
    *,
    baseline: Schedule | None = None,
    measured: Timeline | Iterable[Any] | None = None,
    title: str | None = None,
    window: Window = "auto",
    critical: bool = False,
) -> None:
    """Draw ``schedule`` into ``path``: ``.html`` (offline, details on hover), ``.svg`` or ``.png``.

    The arguments are those of :func:`chart`. Raises ``ValueError`` for another ending or arguments that do not fit
    together, and ``OSError`` if the file cannot be written; in both cases no half file is left behind.
    """
    ending = ending_of(path)
    from weft.figures.picture import build, render

    picture = build(schedule, baseline=baseline, measured=measured, title=title, window=window,
                    hover=ending == ".html", critical=critical)
    write_atomically(path, render(picture, ending, title or schedule.problem.name))


def chart(
    schedule: Schedule,
    *,
    baseline: Schedule | None = None,
    measured: Timeline | Iterable[Any] | None = None,
    title: str | None = None,
    window: Window = "auto",
    critical: bool = False,
) -> alt.LayerChart:
    """The Altair chart of ``schedule``.

    ``baseline`` is drawn above it on the same time axis; it may come from another placement, but must use the same
    time unit. ``measured`` is what a run of ``schedule`` took: a :class:`~weft.runtime.plan.timeline.Timeline`, or
    entries of
    ``block`` (name or index), ``micro_batch``, ``rank`` (index of the device), ``start``, ``end`` in the problem's time
    unit, as tuples in this order or as objects with these attributes or keys. It is drawn under the plan and starts
    at 0 with its first entry.

    ``window`` limits the picture to some times. ``"auto"`` draws all of a schedule whose boxes can be told apart, and
    otherwise its beginning and its end; the subtitle then says so.

    Memory is shown with its capacity. Where ``schedule.solver`` states ``static_memory`` (weights and optimizer state
    per device, in the memory unit), it forms the ground on which activations stand, and the cap is the sum, or
    ``gpu_memory`` (a number or one per device) where that is stated too.

    ``critical`` outlines the operations on the critical path of ``schedule`` and joins them where it changes devices.

    Raises ``ValueError`` for arguments that do not fit together.
    """
    from weft.figures.picture import build

    return build(schedule, baseline=baseline, measured=measured, title=title, window=window, hover=True,
                 critical=critical)


def draw_curve(schedule: Schedule, path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Draw the best makespan and its bound over the time of the search that made ``schedule`` into ``path``.

    The endings and errors are those of :func:`draw`; ``ValueError`` also for a schedule without a history.
    """
    ending = ending_of(path)
    from weft.figures.picture import render
    from weft.figures.search_curve import build

    write_atomically(path, render(build(schedule, title=title, hover=ending == ".html"), ending,
                                  title or schedule.problem.name))
