"""``weft check``: a schedule judged."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap

from weft.app.lib.judged import verdict
from weft.cli.lib.arguments import add_schedule
from weft.cli.lib.command import GOOD, NO, Command
from weft.cli.lib.summary import summary

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_schedule(command)
    command.add_argument("--json", action="store_true", help="print {valid, faults, verified, not_checked} as JSON")


def _run(options: argparse.Namespace) -> int:
    found = verdict(options.schedule)
    if options.json:
        print(json.dumps(found.to_json()))
    elif found.faults:
        print(f"{options.schedule}: not a valid schedule")
        for fault in found.faults:
            print(f"  {fault}")
    else:
        from weft.solver.io.schedule_files import load_schedule

        print(f"{options.schedule}: valid")
        print(summary(load_schedule(options.schedule)))
        print(_wrapped("verified  ", found.verified))
        reasons: dict[str, list[str]] = {}
        for claim, reason in found.not_checked.items():
            reasons.setdefault(reason, []).append(claim)
        for reason, claims in reasons.items():
            print(_wrapped("unchecked ", claims, f" ({reason})"))
    return NO if found.faults else GOOD


def _wrapped(heading: str, names: list[str], ending: str = "") -> str:
    width = min(120, shutil.get_terminal_size((120, 24)).columns)
    return textwrap.fill(heading + ", ".join(names) + ending, width=width, subsequent_indent=" " * len(heading),
                         break_long_words=False, break_on_hyphens=False)


COMMAND = Command(
    name="check",
    summary="judge a schedule from first principles",
    paragraphs=(
        "Every block once per micro-batch, devices and links exclusive, dependencies with their transfers, "
        "memory at every event on every device, micro-batches in order. Each breach is one sentence that names block, "
        "micro-batch, device, time and amount.",
        "What the file states of the schedule is derived from the operations too: makespan, peak memory, status, "
        "repetend and period. A statement that is false is a fault; those that nothing in the file can show (that no "
        "schedule is shorter, how long the search took) are listed as unchecked, with the reason.",
    ),
    example="weft check schedule.json",
    arguments=_arguments,
    run=_run,
)
