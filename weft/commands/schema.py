"""``weft schema``: the JSON Schema of a spec, or of what `weft place` writes."""

from __future__ import annotations

import argparse
import json

import weft
from weft.commands.command import GOOD, Command

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    from weft.placement_schemas import SCHEMAS

    command.add_argument("format", metavar="FORMAT", nargs="?", choices=sorted(SCHEMAS),
                         help=f"a format that weft writes ({', '.join(sorted(SCHEMAS))}); default: a model spec")


def _run(options: argparse.Namespace) -> int:
    from weft.placement_schemas import SCHEMAS

    print(json.dumps(SCHEMAS[options.format] if options.format else weft.schema(), indent=1))
    return GOOD


COMMAND = Command(
    name="schema",
    summary="print the JSON Schema of a model spec, or of a format that weft writes",
    paragraphs=(
        "Editors with a YAML language server complete and check specs with it.",
    ),
    example="weft schema > weft.schema.json",
    arguments=_arguments,
    run=_run,
)
