"""What a search tells beside its progress, and who hears it."""

from __future__ import annotations

import io

from weft.app.lib.notices import forewarn, heard_by
from weft.cli.lib.progress import Waiting


def test_only_the_innermost_listener_hears_and_only_inside() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with heard_by(outer.append):
        with heard_by(inner.append):
            forewarn(10**9, 0.5, 60.0)
        forewarn(10, 0.5, 60.0)  # short enough: nothing to say
        forewarn(10**9, 0.0, 60.0)
    forewarn(10**9, 0.0, 60.0)
    assert len(inner) == len(outer) == 1
    assert inner[0].startswith("   0.5 s  1000000000 operations") and "longer than the limit of 60 s" in inner[0]


def test_a_closed_terminal_ends_no_search() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with Waiting(Gone()) as waiting:
        waiting.end()
        forewarn(10**9, 0.0, 60.0)
