"""Every command under inputs that nobody foresaw: an exit status that is documented, a sentence, never a traceback.

``WEFT_FUZZ=3000`` draws so many; those before ``WEFT_FUZZ_FIRST`` are left out.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.examples import examples
from tests.support.fuzzing import COMMANDS, draw_input, good_files, run_input
from weft.cli.commands import commands

#: How many inputs, and the first of them.
COUNT = int(os.environ.get("WEFT_FUZZ", max(3 * len(COMMANDS), examples(270))))
FIRST = int(os.environ.get("WEFT_FUZZ_FIRST", "0"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    good_files(folder)
    return folder


def test_every_command_is_fuzzed() -> None:
    assert set(COMMANDS) == set(commands())


@pytest.mark.random
@pytest.mark.parametrize("place", range(len(COMMANDS)), ids=list(COMMANDS))
@pytest.mark.timeout(60 + 2 * COUNT)
def test_no_input_gets_a_traceback(place: int, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    numbers = [number for number in range(FIRST, FIRST + COUNT) if number % len(COMMANDS) == place]
    assert numbers
    faults = {number: fault for number in numbers
              if (fault := run_input(draw_input(number, good), good)) is not None}
    assert faults == {}
