"""draw a schedule

One row a GPU, coloured by forward, backward, input- and weight-gradient; under it thin rows for its lanes, and its
memory over time with the cap; warm-up, repetend and cool-down marked. Jobs have a colour each; options taken stand
under the title. The ending of the output chooses: .html (self-contained, details on hover), .svg, .png, or .json for a
trace that Perfetto (ui.perfetto.dev) opens. --critical marks the critical path (see `weft explain`); --history draws,
instead, how the search for the schedule went.

example:
  weft draw schedule.json -o schedule.svg -o schedule.png --baseline 1f1b.json
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from weft.app.lib.arguments import Option, Scheduled
from weft.app.lib.judged import judged
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, command, into
from weft.cli.lib.output import require_output

if TYPE_CHECKING:
    from weft.solver.schedule import Schedule


def draw(
    schedule: Scheduled,
    path: PathLike,
    *,
    baseline: Annotated[Schedule | PathLike | None, Option(
        "another schedule, drawn above on the same time axis", "SCHEDULE")] = None,
    measured: Annotated[PathLike | None, Option("a timeline that `weft replay --timeline` wrote, laid over the plan",
                                                "TIMELINE")] = None,
    critical: Annotated[bool, Option("outline the operations on the critical path")] = False,
    history: Annotated[bool, Option(
        "draw the best makespan and its bound over the time of the search instead")] = False,
    title: Annotated[str | None, Option("the picture's title")] = None,
) -> None:
    """Draw a schedule to ``path``: ``.html`` (self-contained, details on hover), ``.svg``, ``.png``; ``.json`` is a
    Perfetto trace.

    ``baseline`` is drawn above it on the same time axis; ``measured`` is a timeline that :func:`replay` wrote.
    ``critical`` marks the critical path (see :func:`explain`). ``history`` draws, instead of the schedule, the best
    makespan and the bound over the time of the search that made it.

    Blocks may run micro-batches in any order, as those of an imported schedule may, and need more memory than there is:
    that stands out. Raises :class:`~weft.solver.InvalidSchedule` for a schedule that breaks any other rule.
    """
    from weft.app.draw import draw_schedule
    from weft.figures import draw_curve

    if history:
        if baseline is not None or measured is not None or critical:
            raise ValueError("the history of a search is a picture of its own: leave out baseline, measured and "
                             "critical")
        draw_curve(judged(schedule, in_turn=False, capacities=False), path, title=title)
        return
    above = None if baseline is None else judged(baseline, in_turn=False, capacities=False)
    draw_schedule(judged(schedule, in_turn=False, capacities=False), path, baseline=above, measured=measured,
                  title=title, critical=critical)


@command(draw)
def run(call: Call, *, output: Annotated[list[str] | None, into(
        "where to, may be given several times (default: the schedule's name with .html)", "append")] = None) -> int:
    from weft.figures import FORMATS

    outputs = output or [os.path.splitext(call.schedule)[0] + ".html"]
    require_output(outputs, "a picture", (*FORMATS, ".json"), [call.schedule, call.baseline, call.measured])
    for path in outputs:
        call(path=path)
        print(f"written to {path}")
    return GOOD
