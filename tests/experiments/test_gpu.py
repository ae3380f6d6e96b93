"""The one command for a GPU: its parts stand by themselves, and its page says what has run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.lib.gpu_cases import CASES
from experiments.lib.provenance import RESULTS
from experiments.runtime import gpu
from experiments.runtime.gpu import PARTS, Part


def part(name: str, limit: float, words: str) -> Part:
    return Part(name, f"Does {name} run?", words, limit, lambda found, output: output[:15])


def test_without_a_gpu_it_says_so_in_one_sentence(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path / "gpu.json")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("no CUDA device: ") and said.count("\n") == 1
    assert not (tmp_path / "gpu.json").exists()


def test_a_part_that_fails_or_hangs_stops_no_other(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "PARTS", (part("failing", 60, f"json.tool {tmp_path / 'none'}"),
                                       part("hanging", 1, "http.server 0 --bind 127.0.0.1"),
                                       part("good", 60, "this")))
    assert gpu.main(["--device", "cpu", "--output", str(tmp_path / "gpu.json")]) == 1
    content = json.loads((tmp_path / "gpu.json").read_text())
    failing, hanging, good = content["parts"]
    assert not failing["good"] and failing["said"].startswith("exit code ")
    assert not hanging["good"] and hanging["said"] == "not done within its 1 s"
    assert good["good"] and good["said"] == "The Zen of Pyth"
    assert "hanging       NOT GOOD" in capsys.readouterr().out
    page = gpu.page(content)
    assert "**These are not numbers of a GPU.**" in page and content["provenance"]["commit"][:12] in page
    assert "| good | Does good run? | yes |" in page and "| hanging | Does hanging run? | **no** |" in page


def test_all_parts_together_take_ten_minutes_at_most_and_every_case_is_a_part() -> None:
    beside, alone = ([each.limit for each in PARTS if each.alone is alone] for alone in (False, True))
    assert sum(beside) / 4 + max(beside) + sum(alone) <= 600  # on 16 cores, four at once
    assert CASES.keys() <= {each.name for each in PARTS}


def test_the_page_is_what_the_file_says() -> None:
    assert gpu.PAGE.read_text() == gpu.page(json.loads((RESULTS / "gpu.json").read_text())), (
        "python -m experiments.runtime.gpu --page writes it anew")
