"""Backends as options of stages: the choice by memory, what is refused, and two ranks with different ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.pipeline_ranks import one_process
from tests.support.ranks import finished
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.planning.backends import backend_record, backends_notes, by_backends, require_backends
from weft.runtime.captured.captured import CaptureError
from weft.runtime.measure.measure import Memory, Sample
from weft.runtime.measure.stage_costs import PassCost, StageCosts, measured_problem
from weft.solver.problem import Problem

MIB = 2**20


def stage(number: int, seconds: float, kept: int) -> StageCosts:
    """A stage whose forward and backward take so long together, and which keeps so much between them."""
    passes = {"F": PassCost(Sample(seconds / 3, 0.0, 1), Memory(kept, kept)),
              "B": PassCost(Sample(2 * seconds / 3, 0.0, 1), Memory(-kept, 0))}
    return StageCosts(number, 0, 0, 0, {"full": passes})


@pytest.mark.parametrize(("memory", "wanted"), [
    (64, ["fast", "fast"]), (24, ["eager", "fast"]), (9, ["lean", "eager"])])
def test_a_stage_has_the_fast_backend_where_memory_lasts(memory: int, wanted: list[str]) -> None:
    costs = [stage(s, 0.03, 4 * MIB) for s in range(2)]
    others = {0: {"fast": stage(0, 0.02, 16 * MIB), "lean": stage(0, 0.05, 2 * MIB)},
              1: {"fast": stage(1, 0.02, 16 * MIB), "lean": stage(1, 0.05, 2 * MIB)}}

    def problem_of(own: Any) -> Problem:
        found = measured_problem(own)
        return replace(found, devices=tuple(replace(device, memory=memory * MIB - 4 * MIB) for device in found.devices))

    found = by_backends(costs, others, problem_of, 4, 20.0)
    assert found.solver["stage_backends"] == wanted
    assert backend_record(found) == {"stage_backends": wanted}
    assert backends_notes(found, ["x: skipped"]) == [f"stages are computed by {', '.join(wanted)}", "x: skipped"]


@pytest.mark.parametrize(("options", "why"), [
    ({"backends": "nobody"}, "names 'nobody'"), ({"backends": 3}, "must be 'auto' or names")])
def test_backends_are_known_ones(options: dict[str, Any], why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        require_backends(nn.Linear(2, 2), PipelineOptions(micro_batches=2, **options))


def test_a_model_without_numbers_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(CaptureError, match="on the meta device"):
        require_backends(model, PipelineOptions(micro_batches=2, backends="auto"))
    require_backends(nn.Linear(2, 2), PipelineOptions(micro_batches=2, backends="auto"))


@pytest.mark.slow
def test_two_ranks_with_different_backends_train_as_one_process(tmp_path: Path) -> None:
    finished(2, "tests.support.backend_ranks", str(tmp_path), "mine", "inductor")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    losses, gradients, _ = one_process("gpt", 2)
    for each in found:
        assert each["losses"] == pytest.approx(losses, rel=1e-9)
        assert each["calls"] > 0 and set(each["chosen"]) <= {"eager", "mine"}
        assert any("wrong: has wrong numbers: the largest error is" in note for note in each["notes"])
    for step, wanted in enumerate(gradients):
        own = {name: value for each in found for name, value in each["gradients"][step].items()}
        assert set(own) == set(wanted)
        scale = max(float(value.norm()) for value in wanted.values())
        for name, value in wanted.items():
            assert float((own[name] - value).norm()) <= 1e-9 * scale, name
