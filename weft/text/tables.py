"""Tables of :mod:`rich` as plain text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, TextIO

from weft.text.units import TEXT, name_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["console", "table_text"]

#: Characters of a line under a table.
_LINE = 600


def console(file: TextIO | None = None, width: int | None = None, *, plain: bool = False) -> Console:
    """A console to print tables on that takes names as they are: ``[x]`` and ``:x:`` in them mean nothing."""
    from rich.console import Console

    class Shortened(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*map(_shortened, objects), **options)

    return Shortened(file=file, width=width, markup=False, emoji=False, color_system=None if plain else "auto")


def _shortened(part: Any) -> Any:
    """``part`` with names in it as long as people read them."""
    from rich.console import Group
    from rich.table import Table

    if isinstance(part, Group):
        return Group(*map(_shortened, part.renderables))
    if isinstance(part, Table):
        part.title, part.caption = (_lines(text) if isinstance(text, str) else text
                                    for text in (part.title, part.caption))
        for column in part.columns:
            column._cells = [name_text(cell, TEXT) if isinstance(cell, str) else cell for cell in column._cells]
    return part


def _lines(text: str) -> str:
    return "\n".join(name_text(line, _LINE) for line in text.split("\n"))


def table_text(table: RenderableType, width: int = 140) -> str:
    """What a terminal of ``width`` columns without colours would show, without the end of its last line."""
    out = io.StringIO()
    console(out, width, plain=True).print(table)
    return out.getvalue().rstrip()
