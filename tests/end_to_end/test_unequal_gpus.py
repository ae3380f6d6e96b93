"""From a spec that lists its GPUs to a judged schedule and a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from tests.support import refusal, valid, written
from weft.cli.main import main

SPEC = """\
name: unequal
model: {family: gpt, layers: 4, hidden: 256, heads: 8, vocabulary: 1024, sequence: 128}
cluster: {gpus: 4, memory: [4 GiB, 4 GiB, 8 GiB, 8 GiB], device: [v100, v100, h100, h100], gpus_per_machine: 2}
training: {micro_batches: 4}
placement: {backward: [full], shapes: [chain, v, loop]}
"""


def test_unequal_gpus_are_scheduled_judged_checked_and_planned(tmp_path: Path) -> None:
    spec, out = tmp_path / "spec.yaml", tmp_path / "schedule.json"
    spec.write_text(SPEC)
    schedule = valid(weft.solve(spec, effort=0.5))
    assert schedule.makespan_bound <= schedule.makespan
    assert main(["solve", str(spec), "--effort", "0.5", "-o", str(out)]) == 0
    assert main(["check", str(out)]) == 0
    assert main(["plan", str(out), "-o", str(tmp_path / "plan.json")]) == 0
    assert main(["estimate", str(spec), "--json"]) == 0
    solver = json.loads(out.read_text())["solver"]
    assert [round(amount / 1024**3) for amount in solver["gpu_memory"]] == [3, 3, 7, 7]  # 1 GiB of each is reserved
    assert any("unequal GPUs" in note for note in solver["notes"])


@pytest.mark.parametrize(("old", "new", "words"), [
    ("[v100, v100, h100, h100]", "[v100, v100, h100]", "cluster: device lists 3 GPUs, but gpus is 4"),
    ("backward: [full], shapes: [chain, v, loop]", "memory: decide", "placement.memory: decide needs GPUs of one kind"),
    ("backward: [full], shapes: [chain, v, loop]", "shapes: [tensor]", "GPUs that compute together, which takes"),
])
def test_what_does_not_go_with_them_is_one_sentence(old: str, new: str, words: str, tmp_path: Path) -> None:
    spec = written(tmp_path / "spec.yaml", SPEC.replace(old, new))
    said = refusal("solve", spec, "--effort", "0.5", "-o", tmp_path / "out.json")
    assert words in said
