"""Pictures of schedules: one lane per GPU, memory under it, a second schedule above to compare with.

:func:`draw` writes a file, :func:`chart` returns the Altair chart for a notebook. Altair is loaded on the first call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from solver.files import write_atomically
from solver.schedule import Schedule

if TYPE_CHECKING:
    import altair as alt

    from runtime.timeline import Timeline

__all__ = ["FORMATS", "Window", "chart", "draw"]

#: The endings :func:`draw` understands.
FORMATS = (".html", ".svg", ".png")

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
) -> None:
    """Draw ``schedule`` into ``path``: ``.html`` (offline, details on hover), ``.svg`` or ``.png``.

    The arguments are those of :func:`chart`. Raises ``ValueError`` for another ending or arguments that do not fit
    together, and ``OSError`` if the file cannot be written; in both cases no half file is left behind.
    """
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"{os.fspath(path)}: the ending is {ending or 'missing'}, "
                         f"a picture is one of {', '.join(FORMATS)}")
    from weft.figures.picture import build, render

    picture = build(schedule, baseline=baseline, measured=measured, title=title, window=window,
                    hover=ending == ".html")
    write_atomically(path, render(picture, ending, title or schedule.problem.name))


def chart(
    schedule: Schedule,
    *,
    baseline: Schedule | None = None,
    measured: Timeline | Iterable[Any] | None = None,
    title: str | None = None,
    window: Window = "auto",
) -> alt.LayerChart:
    """The Altair chart of ``schedule``.

    ``baseline`` is drawn above it on the same time axis; it may come from another placement, but must use the same
    time unit. ``measured`` is what a run of ``schedule`` took: a :class:`~runtime.timeline.Timeline`, or entries of
    ``block`` (name or index), ``micro_batch``, ``rank`` (index of the device), ``start``, ``end`` in the problem's time
    unit, as tuples in this order or as objects with these attributes or keys. It is drawn under the plan and starts
    at 0 with its first entry.

    ``window`` limits the picture to some times. ``"auto"`` draws all of a schedule whose boxes can be told apart, and
    otherwise its beginning and its end; the subtitle then says so.

    Memory is shown with its capacity. Where ``schedule.solver`` states ``static_memory`` (weights and optimizer state
    per device, in the memory unit), it forms the ground on which activations stand, and the cap is the sum, or
    ``gpu_memory`` (a number or one per device) where that is stated too.

    Raises ``ValueError`` for arguments that do not fit together.
    """
    from weft.figures.picture import build

    return build(schedule, baseline=baseline, measured=measured, title=title, window=window, hover=True)
