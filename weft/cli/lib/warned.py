"""Weft's own warnings, one line each on standard error; those of libraries stay as Python writes them."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from weft.cli.lib.faults import is_ours
from weft.cli.lib.parsing import short

__all__ = ["in_one_line"]


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Inside, what weft warns of is one line."""
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
