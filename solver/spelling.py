"""Suggestions for an unknown name. Imports nothing else of weft, so that help stays light."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Longer names are not compared: that would be slow, and nobody types them. Shorter ones are part of too many.
_LONGEST, _SHORTEST = 1000, 4


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about ``name``, with the closest names in ``known``."""
    if len(name) > _LONGEST:
        return ""
    names = [str(one) for one in known]
    longer = [one for one in names if name in one][:3] if len(name) >= _SHORTEST else []
    matches = longer or difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""
