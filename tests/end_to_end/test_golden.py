"""The golden runs but for those that others are like (``python -m tests.golden`` takes all). Hashes of strings differ
from one test process to the next, so what depends on them is seen here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.golden import GOLDEN, RUNS, TRAINED, differences
from tests.support.golden.said import fields
from tests.support.golden.trained import sums
from tests.support.paths import ROOT

FEW = ("generated 1", "uniform V, split, cap 4", "period K, whole", "latency 0", "problem two-jobs",
       "sequence of any classes", "place inception", "place spec as a graph of stages", "graph of forks with slack",
       "step of forks at one size", "spec tiny.yaml", "plan co-shard", "random plans of mlp", "program of jobs",
       "exports of 1f1b of layers")
#: Take 2 to 8 CPU seconds each, and are of kinds that shorter ones are of too; and three of four drawn problems.
LEFT_OUT = {"family gpt, tight", "period V2 on 32", "place nasnet", "place tight inception", "latency 5", "latency 8",
            "sequence 3", *(f"extended by {kinds}" for kinds in ("choices+lanes", "lanes+jobs", "choices+jobs")),
            *(f"generated {number}" for number in range(72) if number % 4)} - {*FEW}


def test_every_golden_run_is_recorded() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert list(golden) == [*RUNS, *TRAINED] and len(RUNS) >= 100


def test_naming_the_golden_runs_loads_no_torch() -> None:
    subprocess.run([sys.executable, "-c", "import sys, tests.golden; assert 'torch' not in sys.modules"], cwd=ROOT,
                   check=True)


@dataclass(frozen=True)
class _Cut:
    along: str
    parts: frozenset[int]
    sizes: dict[str, int]


@dataclass(frozen=True)
class _Division:
    name: str
    pieces: frozenset[int]
    lengths: dict[str, int]


def test_a_renaming_changes_no_digest() -> None:
    one, other = _Cut("b", frozenset((9, 1)), {"z": 1, "a": 2}), _Division("b", frozenset((1, 9)), {"a": 2, "z": 1})
    assert fields((one,)) == fields([other]) == [["b", [1, 9], [["a", 2], ["z", 1]]]]


def test_a_gradient_that_is_nought_but_for_rounding_says_nought() -> None:
    torch = pytest.importorskip("torch")
    assert sums({"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([-1e-17])}) == {
        "b": 0.0, "w": round((3 + 4 * math.cos(1)) / 5, 10)}


@pytest.mark.parametrize("name", FEW)
def test_a_golden_run_says_what_it_said(name: str) -> None:
    assert differences(name, json.loads(GOLDEN.read_text())) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_other_golden_runs_say_what_they_said(part: int) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert RUNS.keys() > LEFT_OUT
    others = [name for name in RUNS if name not in {*FEW, *LEFT_OUT}][part::4]
    assert [line for name in others for line in differences(name, golden)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_golden_run_with_torch_says_what_it_said(name: str) -> None:
    assert differences(name, json.loads(GOLDEN.read_text())) == []
