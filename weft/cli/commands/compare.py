"""``weft compare``: the table of known schedules beside weft's."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.arguments import add_kinds, add_objective, add_search, add_spec
from weft.cli.lib.command import GOOD, SPEC, Command
from weft.cli.lib.output import search, show

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_spec(command)
    add_objective(command, ("makespan", "span"))
    add_kinds(command)
    add_search(command, time_limit=60.0)


def _run(options: argparse.Namespace) -> int:
    show(search(api.compare, options.spec, options, micro_batches=options.micro_batches), options.json)
    return GOOD


COMMAND = Command(
    name="compare",
    summary="put weft's schedule beside the published ones",
    paragraphs=(
        SPEC,
        "GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-V, a greedy one, and weft's: time per step, bubble, peak "
        "memory per GPU, and whether it fits. All use the same durations and the same accounting of memory; "
        "each known schedule gets the placement on which it fits and is fastest.",
        "Bubble is said three ways: steady (idle share of one period), step (of the whole makespan), span "
        "(between each device's first start and last end).",
        "With --objective span steps may overlap: known schedules are timed for how soon the next step can begin, each "
        "under its own order, and weft searches for that.",
    ),
    example="weft compare gpt.yaml --time-limit 30",
    arguments=_arguments,
    run=_run,
)
