"""``weft latency``: latency of one micro-batch against throughput."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.arguments import add_floor, add_search, add_spec, count, search_options
from weft.cli.lib.command import GOOD, SPEC, Command
from weft.cli.lib.output import keep_and_show, require_output, told

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_spec(command)
    add_floor(command)
    command.add_argument("--points", type=count, default=8, metavar="N",
                         help="points of the trade-off, its two ends among them (default: 8)")
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="where to (.json, .html, .svg, .png); may be given several times")
    add_search(command, time_limit=60.0)


def _run(options: argparse.Namespace) -> int:
    from weft.app.latency.serving import OUTPUTS
    from weft.cli.lib.progress import PointLines, Waiting

    for output in options.output or ():
        require_output(output, "a latency", OUTPUTS, [options.spec])
    with Waiting(quiet=options.quiet) as waiting:
        found = api.latency(
            options.spec, throughput=options.throughput, period=options.period, points=options.points,
            micro_batches=options.micro_batches, options=search_options(options),
            on_progress=told(waiting.before(PointLines(quiet=options.quiet))))
    keep_and_show(found, "the result", options)
    return GOOD


COMMAND = Command(
    name="latency",
    summary="find the least time of a micro-batch at a throughput",
    paragraphs=(
        SPEC,
        "Latency is the time from a micro-batch's first start to its last end while another one starts every period. "
        "With --throughput (micro-batches per time) or --period (the longest allowed) the least latency at that floor "
        "is searched; without, the whole trade-off from the best throughput to the least latency. Every point "
        "carries a lower bound that holds over all placements and every schedule of one micro-batch a period. A floor "
        "that cannot be met is refused with the best throughput (exit status 1). Ctrl-C, SIGTERM and SIGHUP keep what "
        "was found.",
        "-o writes, at a floor, the schedule (.json) or its picture (.html, .svg, .png); of the trade-off its numbers "
        "or its picture. Its latency holds for micro-batches that arrive when the schedule has them begin, as with "
        "weft replay --paced; those that are all there from the start queue.",
    ),
    example=(
        "weft latency inference.yaml -o front.html\n"
        "weft latency inference.yaml --throughput 12.5/s -o schedule.json\n"
        "weft latency problem.json --period 80 --json"
    ),
    arguments=_arguments,
    run=_run,
)
