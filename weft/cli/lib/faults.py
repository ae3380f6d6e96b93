"""Unexpected errors: one sentence, and a file with the details for developers.

weft's own warnings, one line each on standard error; those of libraries keep Python's format.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.cli.lib.command import short
from weft.solver.control.version import VERSION

#: Errors of the surrounding system: whatever code raises them, their message explains the problem.
FOREIGN = (OSError, ImportError)

_HOME = Path(__file__).resolve().parents[3]
_OURS = tuple(f"{_HOME / name}{os.sep}" for name in ("weft", "solver", "models", "runtime"))


def is_said(error: BaseException) -> bool:
    """Whether ``error`` has one of weft's own sentences: a ``ValueError`` raised by weft. One raised by Python or a
    library (``min() arg is an empty sequence``) is meaningless to a user."""
    if not isinstance(error, ValueError):
        return False
    import dis

    last = _innermost(error.__traceback__)
    if last is None:
        return False
    code = last.tb_frame.f_code
    raises = dis.opname[code.co_code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return raises and is_ours(code.co_filename)


def is_ours(filename: str) -> bool:
    """Whether a source file belongs to weft."""
    return str(Path(filename).resolve()).startswith(_OURS)


def report(error: BaseException, command: str) -> str:
    """A sentence about ``error``, which ends ``command``; its traceback goes into a file named in the sentence."""
    if isinstance(error, MemoryError):
        what = "needs more memory than there is"
    elif isinstance(error, RecursionError):
        what = "is nested more deeply than can be followed"
    else:
        text = " ".join(str(error).split())
        what = f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
    return f"{command}: a fault in weft, please report it ({what}){_written(error)}"


def _written(error: BaseException) -> str:
    import platform
    import tempfile
    import traceback

    details = "\n".join([
        f"weft {VERSION}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {sys.argv}", f"folder: {_folder()}", "", *traceback.format_exception(error, limit=-100)])
    try:
        handle, name = tempfile.mkstemp(prefix="weft-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(details)
    except OSError:
        return ""
    return f"; the details are in {name}"


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "(gone)"


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Context in which weft's warnings are one line each."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **others: Any) -> None:
            if not is_ours(filename):
                usual(message, category, filename, *rest, **others)
                return
            before = "\r" if sys.stderr.isatty() else ""  # over the line of progress
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(f"{before}weft: {short(str(message))}", file=sys.stderr, flush=True)

        warnings.showwarning = show
        yield
