"""``weft schema``: the JSON Schemas of the files that weft reads and writes."""

from __future__ import annotations

import argparse
import json

from weft import api
from weft.cli.lib.command import GOOD, Command

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("of", nargs="?", choices=api.SCHEMAS, default="spec",
                         help="which file: a model spec (the default), a block problem, a schedule, or what weft "
                         "place writes")


def _run(options: argparse.Namespace) -> int:
    print(json.dumps(api.schema(options.of), indent=1))
    return GOOD


COMMAND = Command(
    name="schema",
    summary="print the JSON Schema of a file format",
    paragraphs=(
        "Editors with a YAML language server complete and check specs with it.",
    ),
    example="weft schema > weft.schema.json\nweft schema schedule",
    arguments=_arguments,
    run=_run,
)
