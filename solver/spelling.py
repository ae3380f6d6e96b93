"""What may have been meant by a name that is not known. It imports nothing else of weft, so that help stays light."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["near"]

#: Longer names are not compared: that would take long, and nobody typed them.
_LONGEST = 1000


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about ``name`` that proposes what of ``known`` may have been meant."""
    if len(name) > _LONGEST:
        return ""
    matches = difflib.get_close_matches(name, map(str, known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
