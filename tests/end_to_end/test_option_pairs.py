"""Every two options that a command documents together, on small inputs: it runs, or one sentence says why not."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support import ran, slow
from tests.support.kinds_of_input import KINDS, MICRO_BATCHES, write_inputs
from tests.support.option_pairs import COMMANDS, KINDS_OF_PAIRS, pairwise, reasons
from weft.cli.lib.command import BAD, GOOD, NO


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs."""
    folder = tmp_path_factory.mktemp("pairs")
    write_inputs(folder)
    return folder


def _lines() -> list[Any]:
    return [slow(kind, line) if kind == "layers" else (kind, line)
            for kind in KINDS_OF_PAIRS for command in COMMANDS for line in pairwise(command, kind)]


@pytest.mark.parametrize(("kind", "line"), _lines())
def test_two_options_run_together_or_a_sentence_says_why_not(
        kind: str, line: str, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    count = f"-n {MICRO_BATCHES[kind]}" if kind in MICRO_BATCHES else ""
    line = " ".join(line.format(src=KINDS[kind], n=count).split())
    status, _, said = ran(*shlex.split(line))
    words = reasons(kind, line)
    if not words:
        assert status == GOOD, said
    else:
        assert status in (NO, BAD), said
        assert len(said.strip().splitlines()) == 1 and said.startswith("weft"), said
        assert any(word in said for word in words), said
