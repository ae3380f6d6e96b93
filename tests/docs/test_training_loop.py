"""The loop of examples/train_loop.py runs, and goes on from its checkpoint as if it had not stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from weft.runtime.ranks.launch import launch_local


def lines(folder: Path, *arguments: str) -> list[str]:
    """What two ranks print."""
    ended = launch_local(2, [sys.executable, str(ROOT / "examples" / "train_loop.py"), str(folder), *arguments],
                         timeout=250, environment={"PYTHONPATH": f"{ROOT}:{':'.join(sys.path)}"})
    assert [end.code for end in ended] == [0, 0], [end.errors for end in ended]
    return "".join(end.output for end in ended).splitlines()


@pytest.mark.slow
def test_the_loop_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole = lines(tmp_path / "whole", "--epochs", "2")
    assert len(whole) == 2 and whole[0].startswith("epoch 1  loss ")
    assert lines(tmp_path / "parts", "--epochs", "1") == whole[:1]
    assert lines(tmp_path / "parts", "--epochs", "2") == whole[1:]
    assert float(whole[1].split()[3]) < float(whole[0].split()[3])
