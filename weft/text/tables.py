"""Tables of :mod:`rich` as plain text: with shortened names, and in narrow terminals without frames, with stacked
headings and, if there are too many columns, as several tables that begin with the same column.

Non-dominated points of a trade-off, for tables and pictures.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from weft.text.units import TEXT, name_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Column, Table


#: Characters of a line under a table.
_LINE = 600

#: Columns of a terminal below which tables are set narrowly, and the minimum columns of a text there.
_NARROW, _LEAST_TEXT = 100, 10


def console(file: TextIO | None = None, width: int | None = None, *, plain: bool = False) -> Console:
    """A console for tables that prints names literally, without interpreting ``[x]`` and ``:x:``."""
    from rich.console import Console

    class Shortened(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            for part in map(_shortened, objects):
                for own in _narrow(part, self.width) if self.width < _NARROW else (part,):
                    super().print(own, **options)

    return Shortened(file=file, width=width, markup=False, emoji=False, color_system=None if plain else "auto")


def _shortened(part: Any) -> Any:
    """``part`` with its names shortened."""
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


def _narrow(part: Any, width: int) -> Iterator[Any]:
    """``part`` fitted to ``width`` columns: a table's columns in as many tables as necessary."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if isinstance(part, Group):
        for inner in part.renderables:
            yield from _narrow(inner, width)
        return
    if not isinstance(part, Table):
        yield part
        return
    if part.title:
        yield Text(str(part.title), style=part.title_style or "")
    for columns in _in_chunks(part.columns, width):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for column in columns:
            number = column.justify == "right"
            heading = str(column.header)
            table.add_column(textwrap.fill(heading, _width(column), break_long_words=False) if number else heading,
                             justify=column.justify, no_wrap=number)
        cells = [list(column.cells) for column in columns]
        for at, row in enumerate(part.rows):
            table.add_row(*(own[at] for own in cells), style=row.style, end_section=row.end_section)
        yield table
    if part.caption:
        yield Text(str(part.caption))


def _in_chunks(columns: list[Column], width: int) -> list[list[Column]]:
    """``columns`` in order, in as few lists as fit ``width``, each beginning with the first column."""
    first, rest = columns[0], columns[1:]
    chunks, used = [[first]], _width(first)
    for column in rest:
        wide = _width(column) + 2
        if used + wide > width and len(chunks[-1]) > 1:
            chunks.append([first])
            used = _width(first)
        chunks[-1].append(column)
        used += wide
    return chunks


def _width(column: Column) -> int:
    """The width of a column in characters: numbers unbroken, texts and headings broken between words."""
    cells = [str(cell) for cell in column.cells]
    words = max((len(word) for word in str(column.header).split()), default=1)
    longest = max(map(len, cells), default=1)
    return max(words, longest if column.justify == "right" else min(longest, _LEAST_TEXT))


def _lines(text: str) -> str:
    return "\n".join(name_text(line, _LINE) for line in text.split("\n"))


def table_of(title: str, headings: Iterable[str], left: Collection[str] = (), caption: str | None = None,
             **options: Any) -> Table:
    """An empty table, with texts in the columns ``left`` and numbers in the others; a caption makes the title bold."""
    from rich.table import Table

    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left",
                  title_style=None if caption is None else "bold", **options)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    return table


def table_text(table: RenderableType, width: int = 140) -> str:
    """The output on a terminal of ``width`` columns without colours, without the final newline."""
    out = io.StringIO()
    console(out, width, plain=True).print(table)
    return out.getvalue().rstrip()


def non_dominated(points: Sequence[tuple[float, float]]) -> list[int]:
    """The non-dominated ``(memory, throughput)`` points, by rising memory.

    A point dominates another if it has no more memory and no less throughput, and is better in one of the two; equal
    points do not dominate each other.
    """
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1] or points[i] == points[front[-1]]:
            front.append(i)
    return front
