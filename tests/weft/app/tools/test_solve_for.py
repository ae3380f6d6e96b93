"""What one tool can run, and somebody's plan beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from weft.app.lib.arguments import TOOL_NAMES
from weft.runtime.export.tools import TOOLS

SPEC = """
model: {family: gpt, layers: 6, hidden: 512, heads: 8, vocabulary: 8192, sequence: 512}
cluster: {gpus: 2, device: v100}
training: {micro_batches: 4}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(SPEC)
    return tmp_path / "s.yaml"


def test_the_names_of_the_option_are_those_of_the_tools() -> None:
    assert tuple(TOOLS) == TOOL_NAMES


@pytest.mark.parametrize("tool", ["megatron", "deepspeed"])
def test_an_answer_for_a_tool_is_what_it_runs(spec: Path, tool: str) -> None:
    found = weft.solve(spec, tool=tool, effort=0.2)
    assert TOOLS[tool].run(found).schedule.makespan == pytest.approx(found.makespan)
    assert found.solver["tool"]["name"] == tool


def test_a_plan_is_judged_beside_the_best(spec: Path) -> None:
    found = weft.compare_plan(spec, layout="Et|t*5L", effort=0.2)
    assert found.plan.layout == "Et|t*5L" and found.best.step <= found.plan.step
    assert "rank 1 works" in found.why()[0]
    with pytest.raises(ValueError, match="layout has 5 layers"):
        weft.compare_plan(spec, layout="Et|t*4L")
