"""The command line: parses, runs one of :mod:`weft.cli.commands`, and makes exit statuses and sentences of errors.

Each command is a thin face of the function of :mod:`weft` with the same name.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from weft.app.lib.options import command_began
from weft.cli.lib.command import BAD, FAULT, GOOD, INTERRUPTED, NO, Command
from weft.cli.lib.faults import FOREIGN, is_said, report
from weft.cli.lib.signals import end_with, listening
from weft.solver.control.clock import process_start
from weft.solver.control.stopping import STOP
from weft.text.version import VERSION

__all__ = ["main"]

#: When garbage is collected: with the defaults looking through millions of operations again and again takes a fifth of
#: the time, and nothing here makes garbage in circles at that rate.
_COLLECT = (100_000, 50, 1000)

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Errors a user can mend are one sentence on standard error, and so are
    those that nobody has foreseen. Without ``arguments`` those of the process are taken, which ends afterwards."""
    began = process_start() if arguments is None else time.monotonic()
    gc.set_threshold(*_COLLECT)
    for stream in (sys.stdout, sys.stderr):  # a terminal may not know every character that a name has
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with listening(ends=arguments is None) as release, command_began(began):
            status = _run(arguments, release)
            if arguments is None:
                end_with(status)
            return status
    except KeyboardInterrupt:  # in the last moment: nothing was held, or it would not have been raised
        return INTERRUPTED


def _run(arguments: Sequence[str] | None, release: Callable[[], None]) -> int:
    name = "weft"
    try:
        from weft.cli.commands import commands

        known = commands()
        options = _parser(known).parse_args(arguments)
        name = options.command
        if not known[name].stops:
            release()
        status = known[name].run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")
    except Exception as error:
        if isinstance(error, BrokenPipeError) and error.filename is None:
            # Whoever read our output has had enough; Python would complain again when it flushes at exit.
            with contextlib.suppress(OSError, ValueError):  # what a test reads from has no file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return GOOD
        status, sentence = _sentence(error, name)
        # Where a stop cuts a search short, "nothing was found" says nothing of what there is.
        return _fail(INTERRUPTED if STOP.requested and status == NO else status, sentence)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(BAD, f"{self.prog}: {_short(message)} (see {self.prog} --help)\n")


def _parser(known: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of ``weft``; its result has ``command`` and that command's options."""
    raw = argparse.RawDescriptionHelpFormatter
    top = _Parser(prog="weft", formatter_class=raw, epilog=_EXIT_STATUS,
                  description="Search for schedules of distributed DNN training and inference, with proven bounds.")
    top.add_argument("--version", action="version", version=f"weft {VERSION}")
    group = top.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for command in known.values():
        text = (f"weft {command.name} - {command.summary}", *command.paragraphs)
        command.arguments(group.add_parser(
            command.name, help=command.summary, formatter_class=raw,
            description="\n\n".join(textwrap.fill(paragraph, 100) for paragraph in text),
            epilog=f"example:\n{textwrap.indent(command.example, '  ')}\n\n{_EXIT_STATUS}"))
    return top


def _sentence(error: Exception, command: str) -> tuple[int, str]:
    """The exit status and the sentence that ``error`` is for the user of ``command``."""
    if isinstance(error, FOREIGN) or is_said(error):
        if isinstance(error, OSError):
            name = f"{error.filename}: " if error.filename else ""
            return BAD, f"{name}{error.strerror or error}"
        if isinstance(error, ImportError):
            return BAD, str(error)
        if isinstance(error, ValueError):
            from weft.solver.judge.validate import InvalidSchedule
            from weft.solver.step.search import Infeasible

            if isinstance(error, InvalidSchedule):
                return NO, _first(error.violations)
            return NO if isinstance(error, Infeasible) else BAD, str(error)
    return FAULT, report(error, command)


def _first(faults: Sequence[str]) -> str:
    """One sentence of a schedule's faults."""
    return faults[0] + (" (and more: `weft check` lists all)" if len(faults) > 1 else "")


def _fail(status: int, message: str) -> int:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"weft: {_short(message)}", file=sys.stderr, flush=True)
    return status


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST // 2]} ... {message[-_LONGEST // 2:]}"
