"""``weft import``: somebody's schedule."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.arguments import micro_batches
from weft.cli.lib.command import GOOD, NO, Command
from weft.cli.lib.output import JSON, require_output, save
from weft.cli.lib.summary import summary

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="a PyTorch pipelining CSV or a Tessel schedule (.json)")
    command.add_argument("--problem", metavar="SPEC", help="a block problem, or for a CSV a model spec, to time it on")
    command.add_argument("-n", "--micro-batches", type=micro_batches, metavar="N",
                         help="refuse a file of another number")
    command.add_argument("-o", "--output", metavar="FILE", required=True,
                         help="write the schedule there (format weft.schedule/1)")


def _run(options: argparse.Namespace) -> int:
    from weft.solver.judge.validate import violations

    require_output(options.output, "a schedule", JSON, [options.file, options.problem])
    schedule = api.import_schedule(options.file, problem=options.problem, micro_batches=options.micro_batches)
    save(schedule, options.output)
    print(summary(schedule))
    faults = violations(schedule)
    for fault in faults:
        print(f"fault     {fault}")
    print(f"written to {options.output}")
    return NO if faults else GOOD


COMMAND = Command(
    name="import",
    summary="read another tool's schedule",
    paragraphs=(
        "FILE is a CSV of torch.distributed.pipelining, with or without communication, or a Tessel schedule "
        "(.json). It is checked as far as a run depends on it: complete, runnable, sends and receives in one "
        "order. Times are the earliest that its order allows, with the durations of --problem, or one unit for a "
        "forward and for each half of a backward. A schedule that breaks weft's rules is reported (exit status 1) "
        "and written all the same. If it breaks only the order of micro-batches, as PyTorch's LoopedBFS does, it can "
        "be drawn, explained, planned and exported; if it breaks memory, drawn.",
    ),
    example="weft import order.csv --problem gpt.yaml -o theirs.json && weft draw theirs.json",
    arguments=_arguments,
    run=_run,
)
