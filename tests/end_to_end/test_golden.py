"""The golden runs but for the longest (``python -m tests.golden`` takes all)."""

from __future__ import annotations

import json

import pytest

from tests.golden import GOLDEN, RUNS, differences

FEW = ("generated 1", "uniform V, split, cap 4", "period K, whole", "latency 0", "place inception",
       "place spec as a graph of stages", "spec tiny.yaml")
#: Take 2.5 to 8 CPU seconds each, a third of all, and are of kinds that shorter ones are of too.
LONGEST = {"family gpt", "family gpt, tight", "generated 2", "generated 14", "generated 17", "generated 30",
           "generated 49", "generated 57", "period V2 on 32", "place nasnet", "place tight inception"}


def test_every_golden_run_is_recorded() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert list(golden) == list(RUNS) and len(RUNS) >= 100


@pytest.mark.parametrize("name", FEW)
def test_a_golden_run_says_what_it_said(name: str) -> None:
    assert differences(name, json.loads(GOLDEN.read_text())) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_all_other_golden_runs_say_what_they_said(part: int) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert RUNS.keys() > LONGEST
    others = [name for name in RUNS if name not in FEW and name not in LONGEST][part::4]
    assert [line for name in others for line in differences(name, golden)] == []
