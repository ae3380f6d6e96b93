"""The loop of examples/train_loop.py runs, and goes on from its checkpoint as if it had not stopped."""

from __future__ import annotations

import os
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

import weft
from tests.support import ROOT, finished
from tests.support.pipeline_ranks import planned_once


def lines(folder: Path, *runs: str) -> list[str]:
    """What two ranks print that run the loop once for each of ``runs``: a folder, and how many epochs."""
    ended = finished(2, __name__, str(folder), *runs)
    return "".join(end.output for end in ended).splitlines()


@pytest.mark.slow
def test_the_loop_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first, second, *parts = lines(tmp_path, "whole 2", "parts 1", "parts 2")
    assert first.startswith("epoch 1  loss ") and parts == [first, second]
    assert float(second.split()[3]) < float(first.split()[3])


if __name__ == "__main__":
    its_folder, port = Path(sys.argv[1]), int(os.environ["MASTER_PORT"])
    vars(weft)["pipeline"] = partial(planned_once, "the loop")  # with one plan, losses are equal to the last digit
    for number, (name, epochs) in enumerate(map(str.split, sys.argv[2:])):
        os.environ["MASTER_PORT"] = str(port + number)  # each has a store of its own
        sys.argv[1:] = [str(its_folder / name), "--epochs", epochs]
        runpy.run_path(str(ROOT / "examples" / "train_loop.py"), run_name="__main__")
