"""Files are read whole, of limited size, or refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.solver.io.reading import checked_path, read_bytes, read_text


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
