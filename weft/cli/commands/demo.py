"""``weft demo``: the GPT-1.3B demonstration."""

from __future__ import annotations

import argparse
import sys

from weft import api
from weft.cli.lib.arguments import add_search
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import require_folder, search, show

__all__ = ["COMMAND"]

#: Seconds between lines of progress at most; and seconds on the clock, a safety (those of weft.app.demo).
_EVERY, _LIMIT = 2.0, 900.0


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", metavar="FOLDER", default="weft-demo",
                         help="where to (default: weft-demo)")
    add_search(command, time_limit=_LIMIT)


def _run(options: argparse.Namespace) -> int:
    require_folder(options.output)
    shown = search(api.demo, options.output, options, every=_EVERY)
    show(shown.comparison if options.json else shown.brief, options.json)
    if not options.json:
        print("written: " + "  ".join(str(path) for path in shown.files))
    if shown.cut_short:
        print(f"weft demo: {shown.cut_short}", file=sys.stderr)
    return GOOD


COMMAND = Command(
    name="demo",
    summary="plan GPT-1.3B on four V100s with measured costs",
    paragraphs=(
        "Compares the known schedules with weft's at a memory cap where the difference matters, prints four "
        "rows of the table, and writes the whole table, picture (HTML, SVG, PNG), Perfetto trace, schedule and plan "
        "into a folder.",
        "The search ends after a fixed amount of work (--effort, about two minutes on one core), not after a time: "
        "rows and bounds are the same on a slower machine.",
    ),
    example="weft demo",
    arguments=_arguments,
    run=_run,
)
