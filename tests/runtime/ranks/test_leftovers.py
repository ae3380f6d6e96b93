"""Folders in shared memory: those of dead processes go, all others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.runtime.ranks.leftovers import _owner, beginning, shared_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="owners are known by /proc")


def test_folders_of_dead_processes_go_and_others_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    space, number, begun = _owner().split("-")
    here = f"weft-turns-{space}"
    dead = [f"{here}-{ended.pid}-5-abc", f"{here}-{number}-{int(begun) + 1}-again"]  # a number that came again
    alive = [f"{here}-{number}-{begun}-mine", f"weft-turns-{int(space) + 1}-{ended.pid}-5-container",
             "weft-turns-unknown-x", "weft-turns-abc", f"weft-other-{space}-{ended.pid}-5-abc"]
    for name in (*dead, *alive):
        (tmp_path / name).mkdir()
        (tmp_path / name / "board").write_text("x")
    with shared_folder("weft-turns", tmp_path) as made:
        assert made.parent == tmp_path and sorted(path.name for path in tmp_path.iterdir()) == sorted(
            [*alive, made.name])
    assert not made.exists()


def test_a_folder_is_made_elsewhere_where_there_is_no_shared_memory(tmp_path: Path) -> None:
    with shared_folder("weft-turns", tmp_path / "none") as made:
        assert made.is_dir() and beginning(os.getpid()) in made.name.split("-")
