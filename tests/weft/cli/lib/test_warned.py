"""Warnings of weft's are one line of a command's; a program that calls weft gets them as Python shows them."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from tests.support.builders import pipeline, uneven, v
from weft.cli.lib.warned import in_one_line
from weft.cli.main import main
from weft.solver.io.problem_files import save_problem
from weft.solver.orders import local_search, native


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command whose search has local search in it, where there is no compiled kernel."""
    monkeypatch.setattr(native, "why_not", lambda: "there is none")
    monkeypatch.setattr(local_search, "_notice", local_search._notice.__wrapped__)
    save_problem(uneven(pipeline(v(3), memory=4), random.Random(0)), tmp_path / "problem.json")
    return ["solve", str(tmp_path / "problem.json"), "-n", "6", "--effort", "0.005"]


def test_a_command_says_it_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "kernel" in line]
    assert set(lines) == {"weft: the compiled kernel is not used, as there is none; local search runs in Python, a "
                          "hundred times slower"}


def test_others_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="of a library"), in_one_line():
        warnings.warn("of a library", stacklevel=1)
    assert not capsys.readouterr().err
