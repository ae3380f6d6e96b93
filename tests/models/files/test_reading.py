"""Files are read whole, of limited size, or refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.models.files.limits import MAX_GRAPH_NAME
from weft.models.files.reading import bad_name, checked_path, read_bytes, read_text


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1024**2)
    assert read_bytes(path, 1024**2, "a spec", ValueError) == b"x" * 1024**2
    with pytest.raises(ValueError, match="a: is larger than 0 MiB, which a spec is not"):
        read_bytes(path, 1024**2 - 1, "a spec", ValueError)


def test_text_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("\u00e9".encode())
    assert read_text(path, 10, "a spec", ValueError) == "\u00e9"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="a: is not UTF-8 text"):
        read_text(path, 10, "a spec", ValueError)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("", "is a directory, a spec must be a file"), ("pipe", "is a pipe, a spec must be a file"),
                        ("none", "cannot be read: No such file"), ("a\0b", "cannot be read: embedded null")):
        with pytest.raises(ValueError, match=words):
            checked_path(f"{tmp_path}/{name}", 10, "a spec", ValueError)
    assert checked_path(__file__, 10**6, "a spec", ValueError) == __file__


@pytest.mark.parametrize(("name", "words"), [
    ("layer0.attention \u00e9", None), ("", None), ("a\nb", "cannot be shown"), ("\ud800", "cannot be shown"),
    ("x" * MAX_GRAPH_NAME, None), ("x" * (MAX_GRAPH_NAME + 1), f"has {MAX_GRAPH_NAME + 1} letters"),
])
def test_a_bad_name_is_told_in_words(name: str, words: str | None) -> None:
    found = bad_name(name)
    assert found is None if words is None else found is not None and words in found
