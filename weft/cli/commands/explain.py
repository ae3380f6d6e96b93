"""``weft explain``: what a schedule's length hangs on."""

from __future__ import annotations

import argparse
import json

from weft import api
from weft.cli.lib.arguments import add_kinds, add_search, count, micro_batches_of_any
from weft.cli.lib.command import GOOD, NO, Command
from weft.cli.lib.output import search

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SOURCE", help="a schedule, a block problem (.json) or a model spec (.yaml)")
    command.add_argument("-n", "--micro-batches", type=micro_batches_of_any, metavar="N",
                         help="number of micro-batches (default: as in the schedule or spec)")
    command.add_argument("--what-if", action="store_true",
                         help="add the gain of more memory, faster transfers and shorter stages")
    command.add_argument("--in-flight", type=count, metavar="N",
                         help="check whether N micro-batches fit in memory at once")
    add_kinds(command)
    add_search(command, time_limit=30.0)


def _run(options: argparse.Namespace) -> int:
    found = search(api.explain, options.spec, options, micro_batches=options.micro_batches, what_if=options.what_if,
                   in_flight=options.in_flight)
    print(json.dumps(found.to_json()) if options.json else found)
    return NO if found.schedule is None else GOOD


COMMAND = Command(
    name="explain",
    summary="say what limits a schedule, or why there is none",
    paragraphs=(
        "SOURCE is a schedule file, or a model spec or block problem, which is solved first. The report has the "
        "critical path of the makespan, the critical cycle of the period, and each GPU's idle time by cause: the "
        "pipeline filling, results of other blocks, transfers, memory to be freed, the order alone, other GPUs still "
        "at work. For a problem with choices it has the cost of each option that was not taken.",
        "If no schedule fits: which blocks exceed which GPU's memory, how much is missing, and what would "
        "fit (exit status 1). --what-if tries one more GiB, transfers twice as fast and each stage 10 % shorter.",
    ),
    example="weft explain schedule.json --what-if\nweft explain problem.json -n 8 --in-flight 4",
    arguments=_arguments,
    run=_run,
)
