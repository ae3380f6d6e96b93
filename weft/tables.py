"""Tables of :mod:`rich` as plain text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["console", "table_text"]


def console(file: TextIO | None = None, width: int | None = None, *, plain: bool = False) -> Console:
    """A console to print tables on that takes names as they are: ``[x]`` and ``:x:`` in them mean nothing."""
    from rich.console import Console

    return Console(file=file, width=width, markup=False, emoji=False, color_system=None if plain else "auto")


def table_text(table: RenderableType, width: int = 140) -> str:
    """What a terminal of ``width`` columns without colours would show, without the end of its last line."""
    out = io.StringIO()
    console(out, width, plain=True).print(table)
    return out.getvalue().rstrip()
