"""A machine calibrated from end to end, quickly; and what is told of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from tests.support.commands import refusal, shows
from weft.app.calibrate import Calibration
from weft.app.profile.targets import ProfileFault
from weft.models.hardware.device_files import load_device_table


@pytest.mark.slow
def test_the_table_of_this_machine_is_a_device_for_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert "a message takes" in shows("calibrate", "--device", "cpu", "--ranks", "2", "--quick", "--quiet", "-o", path)
    table = load_device_table(path)
    assert {sample.kind for sample in table.collectives} == {"all_gather", "all_reduce", "reduce_scatter",
                                                             "all_to_all"}
    assert table.messages is not None and table.messages.seconds_a_byte >= 0 and table.ranks == 2
    (tmp_path / "spec.yaml").write_text(
        "model: {family: gpt, layers: 4, hidden: 64, heads: 2, vocabulary: 128, sequence: 32}\n"
        "cluster: {gpus: 2, device: here.json}\ntraining: {micro_batches: 2}\n")
    found = json.loads(shows("estimate", tmp_path / "spec.yaml", "--json"))
    assert all(stage["forward"] > 0 for stage in found["stages"])
    assert any("measured by weft calibrate" in note for note in found["notes"])


def test_one_rank_has_kernels_alone_and_a_busy_machine_is_told() -> None:
    seen: list[str] = []
    found = weft.calibrate(device="cpu", ranks=1, quick=True, on_progress=seen.append)
    assert found.measured.messages is None and not found.measured.collectives and "gemm" in seen[2]
    busy = Calibration(replace(found.measured, load=(9.0, 8.0), cores=4))
    assert "the machine was busy: 9.0 processes wanted its 4 cores" in str(busy)
    idle = Calibration(replace(found.measured, load=(0.0, 0.0), cores=4, kernels=tuple(
        replace(sample, spread=0.0) for sample in found.measured.kernels)))
    assert idle.warnings == [] and found.to_json()["format"] == "weft.device/1"


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ProfileFault, match="must be cpu or cuda"):
        weft.calibrate(device="abacus")
    assert "the ending is .txt" in refusal("calibrate", "--device", "cpu", "-o", "here.txt")
