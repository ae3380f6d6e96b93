"""``weft draw``: a schedule as pictures or a trace."""

from __future__ import annotations

import argparse
import os

from weft import api
from weft.cli.lib.arguments import add_schedule
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import require_output

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_schedule(command)
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="where to, may be given several times (default: the schedule's name with .html)")
    command.add_argument("--baseline", metavar="SCHEDULE", help="another schedule, drawn above on the same time axis")
    command.add_argument("--measured", metavar="TIMELINE",
                         help="a timeline that `weft replay --timeline` wrote, laid over the plan")
    command.add_argument("--critical", action="store_true", help="outline the operations on the critical path")
    command.add_argument("--history", action="store_true",
                         help="draw the best makespan and its bound over the time of the search instead")
    command.add_argument("--title", help="the picture's title")


def _run(options: argparse.Namespace) -> int:
    from weft.figures import FORMATS

    outputs = options.output or [os.path.splitext(options.schedule)[0] + ".html"]
    for output in outputs:
        require_output(output, "a picture", (*FORMATS, ".json"),
                       [options.schedule, options.baseline, options.measured])
    for output in outputs:
        api.draw(options.schedule, output, baseline=options.baseline, measured=options.measured, title=options.title,
                 critical=options.critical, history=options.history)
        print(f"written to {output}")
    return GOOD


COMMAND = Command(
    name="draw",
    summary="draw a schedule",
    paragraphs=(
        "One row a GPU, coloured by forward, backward, input- and weight-gradient; under it thin rows for its "
        "lanes, and its memory over time with the cap; warm-up, repetend and cool-down marked. Jobs have a colour "
        "each; options taken stand under the title. The ending of the output chooses: .html "
        "(self-contained, details on hover), .svg, .png, or .json for a trace that Perfetto (ui.perfetto.dev) "
        "opens. --critical marks the critical path (see `weft explain`); --history draws, instead, how the search "
        "for the schedule went.",
    ),
    example="weft draw schedule.json -o schedule.svg -o schedule.png --baseline 1f1b.json",
    arguments=_arguments,
    run=_run,
)
