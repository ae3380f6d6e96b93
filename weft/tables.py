"""Tables of :mod:`rich` as plain text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["table_text"]


def table_text(table: RenderableType, width: int = 140) -> str:
    """What a terminal of ``width`` columns without colours would show, without the end of its last line."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue().rstrip()
