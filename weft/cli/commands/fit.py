"""``weft fit``: measured timelines as corrected costs."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import JSON, kept, require_output, show

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("plan", metavar="PLAN", help="the plan or schedule that ran (weft.plan/1, weft.schedule/1)")
    command.add_argument("timelines", metavar="TIMELINE", nargs="+", help="a measured run of it (weft.timeline/1)")
    command.add_argument("-o", "--output", metavar="FILE", help="write the problem with measured costs there")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(options: argparse.Namespace) -> int:
    require_output(options.output, "a problem", JSON, [options.plan, *options.timelines])
    found = api.fit(options.plan, *options.timelines)
    if options.output:
        kept(found.save, options.output, "the problem")
    show(found, options.json)
    if not options.json:
        for warning in found.warnings:
            print(f"warning: {warning}")
        if options.output:
            print(f"written to {options.output}")
    return GOOD


COMMAND = Command(
    name="fit",
    summary="correct planned costs by measured timelines",
    paragraphs=(
        "PLAN is the plan or schedule that ran; each TIMELINE is a file that `weft replay --timeline` wrote. The table "
        "has every block's planned duration, the median of the measured ones with their spread, and the transfers "
        "that could be measured. -o writes the problem with the measured costs, for the next `weft solve`.",
    ),
    example="weft fit plan.json run1.json run2.json -o measured.json && weft solve measured.json -n 8 -o better.json",
    arguments=_arguments,
    run=_run,
)
