"""``weft plan``: a schedule as instruction lists."""

from __future__ import annotations

import argparse
import json

from weft import api
from weft.cli.lib.arguments import add_allowed, add_schedule
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import JSON, require_output, require_torch

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_schedule(command)
    command.add_argument("-o", "--output", metavar="FILE", help="where to (default: standard output)")
    command.add_argument("--stages", metavar="FILE.py:FUNCTION",
                         help="the stages that `weft replay` will run (or MODULE:FUNCTION): it then refuses any others")
    add_allowed(command)


def _run(options: argparse.Namespace) -> int:
    require_output(options.output, "a plan", JSON, [options.schedule])
    if options.stages is not None:
        require_torch("plan --stages")
    elif options.allow_unsplit or options.allow_other_model:
        raise ValueError("plan: --allow-unsplit and --allow-other-model are about stages: they need --stages")
    plan = api.plan(options.schedule, options.output, options.stages, allow_unsplit=options.allow_unsplit,
                    allow_other_model=options.allow_other_model)
    if options.output:
        print(f"written to {options.output}")
    else:
        from weft.runtime.plan.plan import plan_to_json

        print(json.dumps(plan_to_json(plan), indent=1))
    return GOOD


COMMAND = Command(
    name="plan",
    summary="turn a schedule into one instruction list per rank",
    paragraphs=(
        "Sends and receives are added so that every two ranks see their messages in the same order, and a REDUCE "
        "behind the last pass that adds to each group of gradients; the result is proven free of deadlock and "
        "complete, every gradient summed once, before it is written.",
    ),
    example="weft plan schedule.json -o plan.json",
    arguments=_arguments,
    run=_run,
)
