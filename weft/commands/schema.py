"""``weft schema``: the JSON Schema of a spec."""

from __future__ import annotations

import argparse
import json

import weft
from weft.commands.command import GOOD, Command

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    """It takes none."""


def _run(options: argparse.Namespace) -> int:
    print(json.dumps(weft.schema(), indent=1))
    return GOOD


COMMAND = Command(
    name="schema",
    summary="print the JSON Schema of a model spec",
    paragraphs=(
        "Editors with a YAML language server complete and check specs with it.",
    ),
    example="weft schema > weft.schema.json",
    arguments=_arguments,
    run=_run,
)
