"""The demo prints four rows of its comparison: 1F1B, the best of the fixed ones and of the searches, and weft's."""

from __future__ import annotations

import weft
from tests.support.builders import pipeline, v
from weft.app.demo import Demonstration
from weft.app.lib.known import SEARCHES


def test_the_rows_that_matter_are_shown() -> None:
    whole = weft.compare(pipeline(v(3), memory=5), micro_batches=6, effort=0.1)
    brief = Demonstration(whole, ()).brief
    shown = {row.name for row in brief.rows}
    searches = {row.name: row.value for row in whole.rows if row.name in SEARCHES and row.fits}
    assert "weft" in shown and whole.best_fixed in shown
    assert shown & SEARCHES.keys() == {min(searches, key=lambda name: searches[name])}
    assert shown <= {row.name for row in whole.rows} and len(shown) < len(whole.rows)
    assert brief.best_fixed == whole.best_fixed and not brief.left_out
    assert str(Demonstration(whole, ())) == str(brief)
