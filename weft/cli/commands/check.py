"""judge a schedule from first principles

Every block once per micro-batch, devices and links exclusive, dependencies with their transfers, memory at every event
on every device, micro-batches in order. Each breach is one sentence that names block, micro-batch, device, time and
amount.

What the file states of the schedule is derived from the operations too: makespan, peak memory, status, repetend and
period. A statement that is false is a fault; those that nothing in the file can show (that no schedule is shorter, how
long the search took) are listed as unchecked, with the reason.

example:
  weft check schedule.json
"""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import Annotated

from weft.app.lib.arguments import Option, Scheduled
from weft.app.lib.judged import verdict
from weft.cli.lib.command import GOOD, NO, Call, command
from weft.cli.lib.output import summary


def check(schedule: Scheduled) -> list[str]:
    """What is wrong with a schedule: one sentence each, none if it is valid.

    The judge (:mod:`weft.solver.judge`) derives everything from the operations; what a file states beside them is
    held against them too (:func:`weft.app.lib.judged.verdict` lists it). Raises ``FormatError`` for a file that is no
    schedule.
    """
    return verdict(schedule).faults


@command(check)
def run(call: Call, *,
        as_json: Annotated[bool, Option("print {valid, faults, verified, not_checked} as JSON",
                                         flags="--json")] = False) -> int:
    found = verdict(call.schedule)
    if as_json:
        print(json.dumps(found.to_json()))
    elif found.faults:
        print("\n  ".join([f"{call.schedule}: not a valid schedule", *found.faults]))
    else:
        from weft.solver.io.schedule_files import load_schedule

        print(f"{call.schedule}: valid")
        print(summary(load_schedule(call.schedule)))
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
