"""docs/COMMANDS.md: every command with its options, from what ``weft COMMAND --help`` prints."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator

from experiments.lib.provenance import ROOT
from experiments.lib.writing import table
from weft.cli.commands import commands
from weft.cli.lib.command import Command

PAGE = ROOT / "docs" / "COMMANDS.md"
_HEAD = """# Commands

Generated from the commands' help by `python -m experiments --docs`. What files and specs may hold is in
[FORMATS.md](FORMATS.md) and [SPECS.md](SPECS.md).

- Each command is a function of the same name in Python: `weft.solve("my.yaml", time_limit=30)`. `weft.SearchOptions`
  keeps limits for several calls. The engine alone, without specs and files, is `weft.solver`; `help(weft.solver)` has
  an example.
- `--time-limit` counts from the start of the command and includes writing. At the limit, on Ctrl-C and on SIGTERM, a
  search returns the best valid schedule so far.
- `--effort` with `--seed` limits CP-SAT's deterministic time instead of the clock: the run repeats exactly.
- `--json` prints for machines.
- Exit status: 0 good, also after a stop with an answer; 1 the answer is no (the schedule is invalid, no schedule fits,
  or none was found within the limit: the sentence says which); 2 bad usage or a bad file; 3 a fault in weft, with a
  file of details; 130 stopped before there was an answer (sweep: before there was all of it).
"""


def page() -> str:
    """The text of the page."""
    known = commands()
    contents = table(("command", "what it does"), (
        (f"[`weft {name}`](#weft-{name})", command.summary) for name, command in known.items()))
    return "\n\n".join([_HEAD.strip(), contents, *(_section(command) for command in known.values())]) + "\n"


def options_of(command: Command) -> argparse.ArgumentParser:
    """A parser with what ``command`` accepts."""
    parser = argparse.ArgumentParser(prog=f"weft {command.name}", add_help=False)
    command.arguments(parser)
    return parser


def _section(command: Command) -> str:
    paragraphs = [f"{command.summary[0].upper()}{command.summary[1:]}.", *command.paragraphs]
    text = "\n\n".join(textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False) for part in paragraphs)
    return (f"## weft {command.name}\n\n{text}\n\n```\n{command.example}\n```\n\n"
            + table(("argument", "meaning"), _rows(options_of(command))))


def _rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
        name = ", ".join(action.option_strings) or str(value or action.dest)
        shown = f"{name} {value}" if action.option_strings and value and action.nargs != 0 else name
        meaning = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        yield f"`{shown}`".replace("|", "\\|"), meaning.replace("|", "\\|")
