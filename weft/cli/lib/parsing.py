"""The parser of one command: its help, one line for bad usage, and a suggestion for a misspelled option."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import Any, NoReturn

from weft.cli.lib.command import BAD, Command

_EXIT_STATUS = """\
exit status:
  0    good; also after Ctrl-C, SIGTERM or SIGHUP, where there was an answer to keep
  1    the answer is no: the schedule is invalid, or no schedule fits the memory
  2    bad usage, or a file that cannot be read or written
  3    a fault in weft: the sentence names a file with the details
  130  interrupted before there was any answer (sweep: before there was all of it)
"""

#: An error is one sentence; names in it may be as long as a file makes them.
_LONGEST = 2000

#: Columns of a help text, if the terminal is wide enough.
_WIDEST = 100


def short(message: str) -> str:
    """``message`` cut to a readable length."""
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST // 2]} ... {message[-_LONGEST // 2:]}"


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, and suggests a similar option. Options cannot be abbreviated: a prefix may be another
    tool's name for something else (``export --to``)."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD, f"{self.prog}: {short(message)} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known = [option for action in self._actions for option in action.option_strings]
        for text in args or ():  # before argparse, which would first report a missing argument
            if text == "--":
                break
            name = text.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in known:
                from weft.solver.spelling import near

                self.error(f"there is no option {name}{near(name, known)}")
        return super().parse_known_args(args, namespace)


def describe(parser: argparse.ArgumentParser, found: Command) -> None:
    """Add the arguments of ``found`` to ``parser``, and its help."""
    width = min(_WIDEST, max(40, shutil.get_terminal_size((_WIDEST, 24)).columns))
    text = (f"weft {found.name} - {found.summary}", *found.paragraphs)
    parser.description = "\n\n".join(textwrap.fill(paragraph, width) for paragraph in text)
    parser.epilog = f"example:\n{textwrap.indent(found.example, '  ')}\n\n{_EXIT_STATUS}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    found.arguments(parser)
