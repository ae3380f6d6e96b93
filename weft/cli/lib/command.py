"""What a command is, and the exit statuses it may end with."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["BAD", "FAULT", "GOOD", "INTERRUPTED", "NO", "SPEC", "Command"]

#: Exit statuses; the epilog of every ``--help`` explains them.
GOOD, NO, BAD, FAULT, INTERRUPTED = 0, 1, 2, 3, 130

#: A paragraph of the commands that take one.
SPEC = (
    "SPEC is a model spec in YAML (`weft schema` prints what may stand in it) or a block problem (a .json file "
    "in the format weft.problem/1)."
)


@dataclass(frozen=True)
class Command:
    """One command: its name, one line about it, what ``--help`` says further, and examples (shell lines).

    ``arguments`` declares what it accepts; ``run`` gets that parsed and returns the exit status. A user's mistake is a
    ``ValueError``, ``OSError`` or ``ImportError`` with one sentence, which the command line prints. ``stops``: whether
    SIGTERM and SIGHUP are taken for Ctrl-C, which Python hears between two of its own steps only; what may wait long in
    native code leaves them as they are.
    """

    name: str
    summary: str
    paragraphs: tuple[str, ...]
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    stops: bool = True
