"""Names of graphs are ones that can be shown."""

from __future__ import annotations

import pytest

from weft.models.files.limits import MAX_GRAPH_NAME, bad_name


@pytest.mark.parametrize(("name", "words"), [
    ("layer0.attention \u00e9", None), ("", None), ("a\nb", "cannot be shown"), ("\ud800", "cannot be shown"),
    ("x" * MAX_GRAPH_NAME, None), ("x" * (MAX_GRAPH_NAME + 1), f"has {MAX_GRAPH_NAME + 1} letters"),
])
def test_a_bad_name_is_told_in_words(name: str, words: str | None) -> None:
    found = bad_name(name)
    assert found is None if words is None else found is not None and words in found
