"""``weft solve``: the best schedule of a source, written and summed up."""

from __future__ import annotations

import argparse
import json

from weft import api
from weft.app.lib.options import OVERLAP
from weft.cli.lib.arguments import add_floor, add_kinds, add_objective, add_search, add_spec
from weft.cli.lib.command import GOOD, SPEC, Command
from weft.cli.lib.output import JSON, require_output, save, search
from weft.cli.lib.summary import summary

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_spec(command)
    command.add_argument("-o", "--output", metavar="FILE", help="write the schedule there (format weft.schedule/1)")
    add_objective(command)
    add_floor(command)
    add_kinds(command)
    command.add_argument("--overlap", choices=OVERLAP, default=OVERLAP[0],
                         help="whether a spec's collectives may run beside computation: none, or auto, searched with "
                              "the schedule (default: none)")
    add_search(command, time_limit=60.0)


def _run(options: argparse.Namespace) -> int:
    require_output(options.output, "a schedule", JSON, [options.spec])
    schedule = search(api.solve, options.spec, options, micro_batches=options.micro_batches,
                      throughput=options.throughput, period=options.period, overlap=options.overlap)
    if options.output is not None:
        save(schedule, options.output)
    if options.json:
        from weft.solver.io.schedule_files import schedule_to_json

        told = schedule_to_json(schedule, operations=False)
        for bulky in ("problem", "operations"):
            del told[bulky]
        print(json.dumps({"name": schedule.problem.name, **told}))
    else:
        print(summary(schedule))
        if options.output:
            print(f"written to {options.output}")
    return GOOD


COMMAND = Command(
    name="solve",
    summary="find the best schedule of a model or a block problem",
    paragraphs=(
        SPEC,
        "For a model every placement is searched: one stage a GPU, or several in a V, a loop or a wave, with "
        "the backward whole or split into input- and weight-gradient. Known schedules come first, so that "
        "there is an answer within a second; then the steady state (the repetend), warm-up and cool-down "
        "around it, and in the time left the schedule as a whole. Every answer has passed an independent check "
        "and has a lower bound. Ctrl-C, SIGTERM and SIGHUP end the search and keep the best answer so far.",
        "--objective says what is minimised. makespan: the time of one step. span: the longest that a GPU is busy with "
        "one step, from its own first block to its own last, as every GPU may begin the next step when it has ended "
        "this one. rate: the time per micro-batch of the steady state. latency: the time of one micro-batch, at the "
        "--throughput or the --period that it needs as its floor (weft latency shows the whole trade-off).",
        "--overlap auto also searches how collectives overlap with computation: the whole model on every GPU, "
        "gradients summed in buckets; stages on several GPUs, their all-reduces in chunks or as reduce-scatter and "
        "all-gather, or two micro-batches side by side. The gain over the same placement without overlap is printed.",
        "A block problem may have choices (options that are searched too, with the cost of each), several jobs on "
        "the same GPUs (-n a=8,b=4), and micro-batches that differ in their costs (-n short,long,long, --reorder).",
    ),
    example=("weft solve gpt.yaml -o schedule.json --time-limit 30\n"
             "weft solve problem.json --micro-batches 16 --objective span\n"
             "weft solve jobs.json -n train=8,serve=16 --ratio train=1,serve=2\n"
             "weft solve gpt.yaml --overlap auto\n"
             "weft solve gpt.yaml --objective latency --throughput 12.5/s --json"),
    arguments=_arguments,
    run=_run,
)
