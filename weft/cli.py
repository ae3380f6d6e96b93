"""The command line: parses, runs one of :mod:`weft.commands`, and makes exit statuses and sentences of errors.

Each command is a thin face of the function of :mod:`weft` with the same name.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

import weft
from solver.clock import process_start
from weft.commands import commands
from weft.commands.command import BAD, GOOD, INTERRUPTED, NO, Command
from weft.options import command_began

__all__ = ["main"]

#: When garbage is collected: with the defaults looking through millions of operations again and again takes a fifth of
#: the time, and nothing here makes garbage in circles at that rate.
_COLLECT = (100_000, 50, 1000)

_EXIT_STATUS = """\
exit status:
  0    good
  1    the answer is no: the schedule is invalid, or no schedule fits the memory
  2    bad usage, or a file that cannot be read or written
  130  interrupted before there was any answer (sweep: before there was all of it)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Errors a user can mend are one sentence on standard error."""
    began = process_start() if arguments is None else time.monotonic()
    gc.set_threshold(*_COLLECT)
    known = commands()
    options = _parser(known).parse_args(arguments)
    try:
        with command_began(began):
            return _checked(known[options.command], options)
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(BAD, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser(known: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of ``weft``; its result has ``command`` and that command's options."""
    raw = argparse.RawDescriptionHelpFormatter
    top = _Parser(prog="weft", formatter_class=raw, epilog=_EXIT_STATUS,
                  description="Search for schedules of distributed DNN training and inference, with proven bounds.")
    top.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    group = top.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for command in known.values():
        text = (f"weft {command.name} - {command.summary}", *command.paragraphs)
        command.arguments(group.add_parser(
            command.name, help=command.summary, formatter_class=raw,
            description="\n\n".join(textwrap.fill(paragraph, 100) for paragraph in text),
            epilog=f"example:\n{textwrap.indent(command.example, '  ')}\n\n{_EXIT_STATUS}"))
    return top


def _checked(command: Command, options: argparse.Namespace) -> int:
    try:
        status = command.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(BAD, f"{name}{error.strerror or error}")
    except ImportError as error:
        return _fail(BAD, str(error))
    except ValueError as error:
        from solver.search import Infeasible
        from solver.validate import InvalidSchedule

        if isinstance(error, InvalidSchedule):
            return _fail(NO, _first(error.violations))
        return _fail(NO if isinstance(error, Infeasible) else BAD, str(error))


def _first(faults: Sequence[str]) -> str:
    """One sentence of a schedule's faults."""
    return faults[0] + (" (and more: `weft check` lists all)" if len(faults) > 1 else "")


def _fail(status: int, message: str) -> int:
    print(f"weft: {message}", file=sys.stderr)
    return status
