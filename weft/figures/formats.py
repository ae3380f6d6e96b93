"""The files that pictures are written to."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FORMATS", "ending_of"]

#: The endings that a picture may have.
FORMATS = (".html", ".svg", ".png")


def ending_of(path: str | os.PathLike[str]) -> str:
    """The ending of ``path``, one of :data:`FORMATS`. Raises ``ValueError`` for any other."""
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"{os.fspath(path)}: the ending is {ending or 'missing'}, "
                         f"a picture is one of {', '.join(FORMATS)}")
    return ending
