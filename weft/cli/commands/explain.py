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
                         help="how many micro-batches run (a schedule or spec says it itself)")
    command.add_argument("--what-if", action="store_true", help="add what changes of memory and speed would give")
    command.add_argument("--in-flight", type=count, metavar="N", help="ask whether N micro-batches fit at once")
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
        "SOURCE is a schedule file, or a model spec or block problem, which is solved first. It prints the critical "
        "path of the makespan, the critical cycle of the period, and each GPU's idle time by cause: filling the "
        "pipeline, other blocks' results, transfers, memory, the order alone, draining. For problems with choices it "
        "also prints the cost of each option that was not taken.",
        "Where no schedule fits: which blocks collide in which GPU's memory, how much is missing, and what would "
        "work (exit status 1). --what-if tries one more GiB, transfers twice as fast and each stage 10 % shorter.",
    ),
    example="weft explain schedule.json --what-if\nweft explain problem.json -n 8 --in-flight 4",
    arguments=_arguments,
    run=_run,
)
