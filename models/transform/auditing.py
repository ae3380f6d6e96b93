"""An independent check of a plan and the times that a search gave its parts.

The inputs of every part are derived again here, only from the cuts and placement of operators: which parts produce the
elements that it reads, and when. Neither the plan's derived communications nor the searched blocks are used.
:mod:`weft.app.plans.checking` checks the values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from weft.models.layouts.layout import Box, intersection
from weft.models.transform.planned import Part, Planned, View, cells


def breaches(planned: Planned, times: Mapping[Part, tuple[float, float]], *, tolerance: float = 1e-9) -> list[str]:
    """The violations in ``times`` (start and end of every part, in seconds): a sentence each.

    All parts run exactly once; a device runs one block of them at a time (parts of equal times are one block); a part's
    inputs are complete before it starts; orders are respected. Times count as different if they differ by more than
    ``tolerance`` of the latest end.
    """
    every = [part for operation in planned.program.operations for part in planned.parts(operation.name)]
    missing = [part for part in every if part not in times]
    if missing:
        return [f"{part} does not run" for part in missing]
    for part, (start, end) in times.items():
        if not (0 <= start <= end < math.inf):
            return [f"{part} runs from {start} to {end}, which is no span of a step"]
    least = tolerance * max((end for _, end in times.values()), default=0.0)
    found = [f"{part} is no part of the plan" for part in times.keys() - set(every)]
    found += _overlaps(planned, times, least)
    for part in every:
        for name in dict.fromkeys(planned.program.by_name[part.operation].inputs):
            for term in planned.program.terms(name):
                if term in planned.program.producer:
                    found += _late(planned, part, name, term, times, least)
    for order in planned.orders:
        for first, then in order.pairs(planned):
            inside = times[then] == times[first] and planned.device(then) == planned.device(first)
            if not inside and times[then][0] < times[first][1] - least:
                found.append(f"{then} starts before {first} ends, which is ordered before it")
    return found


def _overlaps(planned: Planned, times: Mapping[Part, tuple[float, float]], least: float) -> Iterator[str]:
    rows: dict[int, dict[tuple[float, float], Part]] = {}
    for part, span in times.items():
        rows.setdefault(planned.device(part), {}).setdefault(span, part)
    for device, spans in rows.items():
        for (one, first), (other, then) in itertools.pairwise(sorted(spans.items())):
            if other[0] < one[1] - least:
                yield f"{first} and {then} run on device {device} at once"


def _late(planned: Planned, part: Part, name: str, term: str, times: Mapping[Part, tuple[float, float]],
          least: float) -> Iterator[str]:
    """Elements of a term not yet made when ``part`` starts. Parts of one block run in sequence inside it; outputs of
    another device at the same time come too late."""
    start = times[part]
    made = [view for view in planned.gives(planned.program.producer[term], term)
            if times[view.part][1] <= start[0] + least
            or (times[view.part] == start and view.device == planned.device(part))]
    for read in planned.reads(part.operation, name):
        if read.part == part:
            for value in sorted({view.value for view in planned.gives(planned.program.producer[term], term)}):
                if not _covers([view for view in made if view.value == value], read.box):
                    yield f"{part} reads {term} before all of it is made"


def _covers(views: list[View], box: Box) -> bool:
    """Whether the views have every element of a box: some view contains each whole cell between their edges."""
    return all(any(intersection(view.box, cell) == cell for view in views) for cell in cells(box, views))
