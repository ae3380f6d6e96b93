"""``weft share``: several jobs on the same GPUs, in one period."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.arguments import add_search, micro_batches, positive
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import keep_and_show, require_output, search

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("jobs", metavar="JOB", nargs="+", help="a model spec (.yaml) or a block problem (.json) each, "
                         "two at least")
    command.add_argument("--ratio", dest="steps", metavar="P:Q", help="steps of each job in a round, in the order of "
                         "the jobs (default: small ratios are tried)")
    command.add_argument("--max-slowdown", type=_slowdown, metavar="X",
                         help="a step of no job may take more than X times as long as alone; or a=X,b=Y")
    command.add_argument("--rounds", type=micro_batches, metavar="N",
                         help="rounds of the schedule (default: 8, or more where the steady state needs them)")
    command.add_argument("--parallel", choices=("auto", "data", "pipeline"), default="auto",
                         help="how specs train: data (the whole model on each GPU), pipeline (the best one for it "
                              "alone), or auto (data where it fits; the default)")
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="write the schedule (.json) or its picture (.html, .svg, .png) there; may be given "
                              "several times")
    add_search(command, time_limit=60.0)


def _slowdown(text: str) -> float | dict[str, float]:
    """``1.2``, or ``a=1.2,b=2`` by job."""
    if "=" not in text:
        return positive(text)
    found: dict[str, float] = {}
    for part in text.split(","):
        job, _, value = part.rpartition("=")
        if not job.strip() or job.strip() in found:
            raise argparse.ArgumentTypeError(f"is {text!r}, it must be a number, or job=number between commas, each "
                                             "job once")
        found[job.strip()] = positive(value.strip())
    return found


def _run(options: argparse.Namespace) -> int:
    from weft.app.share.result import OUTPUTS

    for output in options.output or ():
        require_output(output, "a schedule", OUTPUTS, options.jobs)
    found = search(lambda jobs, **settings: api.share(*jobs, **settings), options.jobs, options, ratio=options.steps,
                   max_slowdown=options.max_slowdown, rounds=options.rounds, parallel=options.parallel)
    keep_and_show(found, "the schedule", options)
    return GOOD


COMMAND = Command(
    name="share",
    summary="put several jobs on the same GPUs",
    paragraphs=(
        "Each JOB is a model spec or a block problem of which a micro-batch is one step; all are on the same GPUs. "
        "They share computation, network and memory in one period, every rank sees their collectives in one order, and "
        "each job's own steps stay as they are. A spec trains data parallel where the whole model fits on each GPU, "
        "else as a pipeline.",
        "The table has the period with its bound, the speed-up over running the jobs in turn (each with its own "
        "overlap, and without any), and the slowdown of each job's step compared with running alone. Jobs that do not "
        "fit together, or of which one would get slower than --max-slowdown allows, are refused with exit status 1.",
        "The schedule that -o writes is one of jobs: draw, check, plan and replay take it.",
    ),
    example=(
        "weft share gpt.yaml bert.yaml -o shared.json -o shared.html\n"
        "weft share a.json b.json --ratio 2:1 --max-slowdown 1.2\n"
        "weft share a.json b.json c.json --max-slowdown a=1.1,b=2 --json"
    ),
    arguments=_arguments,
    run=_run,
)
