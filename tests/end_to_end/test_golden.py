"""A few of the golden runs, one of each kind (``python -m tests.golden`` takes all)."""

from __future__ import annotations

import json

import pytest

from tests.golden import GOLDEN, RUNS, differences

FEW = ("generated 1", "generated 4", "uniform V, split, cap 4", "period K, whole", "latency 0", "place inception",
       "place spec as a graph of stages", "spec tiny.yaml")


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
    others = [name for name in RUNS if name not in FEW][part::4]
    assert [line for name in others for line in differences(name, golden)] == []
