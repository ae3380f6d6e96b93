"""What ranks must call ``weft.pipeline`` with alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.app.pipeline.lib.options import PipelineOptions


@pytest.mark.parametrize("other", [
    {"transport": "shared"}, {"schedule": "1f1b"}, {"schedule": "a.json"}, {"plan": "a.json"}, {"cuts": [3]},
    {"split": ["a"]}, {"compile": True}, {"backends": "auto"}, {"memory_plan": {"a": "keep"}}, {"clip_norm": 1.0},
    {"tensor_parallel": {"a": 1}}])
def test_every_setting_counts_by_its_name(other: dict[str, Any]) -> None:
    one, two = PipelineOptions(micro_batches=4).settings(), PipelineOptions(micro_batches=4, **other).settings()
    assert [name for name in one if one[name] != two[name]] == [f"{next(iter(other))}="]


def test_what_means_the_same_is_the_same() -> None:
    one = PipelineOptions(micro_batches=4, plan="a.json", memory_plan={"a": "keep", "b": "offload"}).settings()
    assert one == PipelineOptions(
        micro_batches=4, plan=Path("a.json"), memory_plan={"b": "offload", "a": "keep"}).settings()
