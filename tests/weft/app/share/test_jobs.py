"""Specs and problems, read as jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from weft.app.lib.options import SearchOptions
from weft.app.share.jobs import jobs_of
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
