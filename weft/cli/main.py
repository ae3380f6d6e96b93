"""The command line: parses, runs one of :mod:`weft.cli.commands`, and converts errors to exit statuses and sentences.

Each command is a thin wrapper of the function of :mod:`weft` with the same name. Only the called command's module is
imported.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.app.lib.options import command_began
from weft.cli.commands import GROUPS, command, summary
from weft.cli.lib.command import BAD, FAULT, GOOD, INTERRUPTED, NO, Command, Parser, describe, short
from weft.cli.lib.faults import FOREIGN, in_one_line, is_said, report
from weft.cli.lib.signals import end_with, listening
from weft.solver.control.clock import process_start
from weft.solver.control.garbage import seldom_collected
from weft.solver.control.stopping import STOP
from weft.solver.control.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. User errors and unexpected errors are one sentence on standard error.
    Without ``arguments`` the process's own are used, and the process ends afterwards."""
    began = process_start() if arguments is None else time.monotonic()
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")  # closed by the caller
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):  # a terminal may not support every character of a name
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with listening(ends=arguments is None) as release, command_began(began), seldom_collected(), in_one_line():
            status = _run(arguments, release)
            if arguments is None:
                end_with(status)
            return status
    except KeyboardInterrupt:  # at the last moment: nothing was held, or it would not have been raised
        return INTERRUPTED


def _run(arguments: Sequence[str] | None, release: Callable[[], None]) -> int:
    name = "weft"
    try:
        called, options = _parsed(arguments)
        name = called.name
        if not called.stops:
            release()
        status = called.run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")
    except Exception as error:
        if isinstance(error, BrokenPipeError) and error.filename is None:
            # The reader closed our output; Python would complain again when it flushes at exit.
            with contextlib.suppress(OSError, ValueError):  # a test's stream has no file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return GOOD
        status, sentence = _sentence(error, name)
        # If a stop cut the search short, "nothing was found" does not mean that nothing exists.
        return _fail(INTERRUPTED if STOP.requested and status == NO else status, sentence)


def _parsed(arguments: Sequence[str] | None) -> tuple[Command, argparse.Namespace]:
    """The command called by ``arguments`` (default: those of the process), and its options.

    Raises ``SystemExit`` if help was requested, or for bad usage, after a sentence on standard error.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    found = command(given[0]) if given else None
    if found is not None:
        parser = Parser(prog=f"weft {found.name}", allow_abbrev=False)
        describe(parser, found)
        return found, parser.parse_args(given[1:])
    top = Parser(prog="weft", add_help=False)
    if not given:
        top.error("name a command, such as `weft demo`")
    if given[0] not in ("-h", "--help", "help", "--version"):
        top.error(_no_command(given[0]))
    print(f"weft {VERSION}" if given[0] == "--version" else _overview())
    raise SystemExit(GOOD)


def _overview() -> str:
    """Every command on one line: 24 lines of 80 columns, one screen."""
    lines = ["weft COMMAND ... searches for schedules. Options, examples: weft COMMAND --help"]
    for title, names in GROUPS.items():
        lines += [f"{'' if i else title:9}{name:12}{summary(name)}" for i, name in enumerate(names)]
    return "\n".join(lines)


def _no_command(name: str) -> str:
    from weft.solver.spelling import near

    if name.startswith("-"):
        return f"there is no option {name}; a command comes first"
    if Path(name).suffix in (".yaml", ".yml"):
        return f"{name} is no command; to search for its schedule: weft solve {name}"
    return f"there is no command {name!r}{near(name, (known for group in GROUPS.values() for known in group))}"


def _sentence(error: Exception, command: str) -> tuple[int, str]:
    """The exit status and the sentence of ``error`` for the user of ``command``."""
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
        print(f"weft: {short(message)}", file=sys.stderr, flush=True)
    return status
