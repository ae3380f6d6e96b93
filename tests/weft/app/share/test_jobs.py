"""Specs and problems, read as jobs.

Ratios and slowdowns, as they are said.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft.app.lib.options import SearchOptions
from weft.app.share.jobs import filling_ratios, jobs_of, ratio_given, slowdowns_given, small_ratios
from weft.models.share.job import SharingError

SPEC = """
name: tiny
model:
  layers:
    - {name: block, repeat: 4, forward: 1 ms, backward: 2 ms, activation_memory: 100 MiB, parameters: 10000000,
       output: 1 MiB}
cluster: {gpus: 2, memory: 8 GiB, bandwidth: 10 GB/s, latency: 20 us}
training: {micro_batches: 4}
"""


def options() -> SearchOptions:
    """Their time counts from now on."""
    return SearchOptions(time_limit=3000, effort=0.05)


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_spec_is_data_parallel_where_it_fits_and_a_pipeline_where_not(tmp_path: Path) -> None:
    small = written(tmp_path, "small.yaml", SPEC)
    large = written(tmp_path, "large.yaml", SPEC.replace("10000000", "200000000"))
    first, second = jobs_of([small, large], "auto", options())
    assert (first.name, second.name) == ("small", "large")
    assert first.kind.startswith("data parallel") and second.kind.startswith("pipeline")
    assert second.held == (2 * 200_000_000 * 16,) * 2 and first.capacity == second.capacity
    pipelined, again = jobs_of([small, small], "pipeline", options())
    assert pipelined.kind.startswith("pipeline") and again.name == "small 2"
    asked = replace(options(), ratio={"small": 1})  # as the command has it
    assert jobs_of([small, small], "pipeline", asked)[0].kind == pipelined.kind
    assert any("runs empty at the end of each batch is not counted" in note for note in pipelined.notes)


def test_one_cluster_for_all(tmp_path: Path) -> None:
    one = written(tmp_path, "one.yaml", SPEC)
    other = written(tmp_path, "other.yaml", SPEC.replace("10 GB/s", "20 GB/s"))
    with pytest.raises(SharingError, match=r"other.yaml: cluster.bandwidth is 20000000000.*, and 10000000000"):
        jobs_of([one, other], "auto", options())
    with pytest.raises(SharingError, match="one job alone shares nothing"):
        jobs_of([one], "auto", options())
    with pytest.raises(ValueError, match="parallel is 'both', it must be one of auto, data, pipeline"):
        jobs_of([one, one], "both", options())


@pytest.mark.parametrize(("ratio", "steps"), [
    ("2:1", (2, 1)), ((2, 4), (1, 2)), ({"b": 3, "a": 1}, (1, 3)), ("64:1", (64, 1))])
def test_what_a_ratio_says(ratio: Any, steps: tuple[int, ...]) -> None:
    assert ratio_given(ratio, ["a", "b"]) == steps


@pytest.mark.parametrize(("ratio", "message"), [
    ("2:1:1", "3 numbers for 2 jobs"), ("1.5:1", "never align .3:2 in place of 1.5:1"), ("0:1", "no whole number"),
    ("x:1", "no whole number"), ({"a": 1, "c": 1}, "ratio names a, c"), ((True, 1), "no whole number"),
    ("97:101", "meet again after 101 steps .* so they never align; give a ratio of smaller numbers, as 1:1")])
def test_ratios_that_mean_nothing_or_never_align(ratio: Any, message: str) -> None:
    with pytest.raises(SharingError, match=message):
        ratio_given(ratio, ["a", "b"])


def test_small_ratios_are_each_there_once_and_the_even_one_is_first() -> None:
    assert small_ratios(2) == [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)]
    assert small_ratios(3)[0] == (1, 1, 1) and len(small_ratios(3)) == 7 and small_ratios(5) == [(1,) * 5]


def test_slowdowns_are_of_all_jobs_or_of_some() -> None:
    assert slowdowns_given(1.2, ["a", "b"]) == {"a": 1.2, "b": 1.2}
    assert slowdowns_given({"b": 2}, ["a", "b"]) == {"b": 2} and slowdowns_given(None, ["a"]) == {}


@pytest.mark.parametrize(("limit", "message"), [
    ({"c": 2}, "names 'c'"), (0.9, "at least 1"), ({"a": True}, "at least 1"), (float("inf"), "at least 1")])
def test_slowdowns_that_mean_nothing(limit: Any, message: str) -> None:
    with pytest.raises(SharingError, match=message):
        slowdowns_given(limit, ["a", "b"])


def test_short_steps_fill_what_a_long_one_leaves_idle() -> None:
    assert filling_ratios([100, 6], [[60, 40], [4, 2]]) == [(1, 10)]  # 40 / 4 on the GPU, 60 / 2 on the network
    assert filling_ratios([6, 100], [[4, 0], [60, 100]]) == [(10, 1)]
    assert filling_ratios([100, 1], [[0, 0], [1, 0]]) == [(1, 16)]
    assert filling_ratios([100, 20], [[60, 40], [18, 2]]) == []  # two: a small ratio
    assert filling_ratios([9, 9, 9], [[0], [0], [0]]) == []
