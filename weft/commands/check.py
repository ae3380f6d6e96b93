"""``weft check``: a schedule judged."""

from __future__ import annotations

import argparse
import json

import weft
from weft.commands.arguments import add_schedule
from weft.commands.command import GOOD, NO, Command
from weft.commands.summary import summary

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_schedule(command)
    command.add_argument("--json", action="store_true", help="print {valid, faults} as JSON")


def _run(options: argparse.Namespace) -> int:
    faults = weft.check(options.schedule)
    if options.json:
        print(json.dumps({"valid": not faults, "faults": faults}))
    elif faults:
        print(f"{options.schedule}: not a valid schedule")
        for fault in faults:
            print(f"  {fault}")
    else:
        from solver.files import load_schedule

        print(f"{options.schedule}: valid")
        print(summary(load_schedule(options.schedule)))
    return NO if faults else GOOD


COMMAND = Command(
    name="check",
    summary="judge a schedule from first principles",
    paragraphs=(
        "Every block once per micro-batch, devices and links exclusive, dependencies with their transfers, "
        "memory at every event on every device, micro-batches in order, bounds and period consistent. Each "
        "breach is one sentence that names block, micro-batch, device, time and amount.",
    ),
    example="weft check schedule.json",
    arguments=_arguments,
    run=_run,
)
