"""Commands as a shell has them, run in this process."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from weft.cli.main import main


class Ran(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def ran(*arguments: object) -> Ran:
    """``weft`` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            assert isinstance(end.code, int)
            status = end.code
    return Ran(status, out.getvalue(), err.getvalue())


def shows(*arguments: object, status: int = 0) -> str:
    """What a command prints that ends with this status."""
    ended = ran(*arguments)
    assert ended.status == status, ended
    return ended.out


def refusal(*arguments: object, status: int = 2) -> str:
    """The one sentence with which a command refuses."""
    ended = ran(*arguments)
    assert ended.status == status and len(ended.err.splitlines()) == 1, ended
    return ended.err
