"""Which tools run an answer, and what the nearest one costs in each."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.support.builders import chain, pipeline
from tests.weft.app.tools.test_solve_for import GRID, SPEC
from weft.app.tools.elsewhere import elsewhere, run_line, tool_lines
from weft.runtime.export.tools import TOOLS
from weft.solver import Schedule, baseline


def solved(folder: Path, placement: str) -> Schedule:
    (folder / "s.yaml").write_text(f"{SPEC}placement: {placement}\n")
    return weft.solve(folder / "s.yaml", effort=0.2, time_limit=3000)


@pytest.mark.parametrize("placement", ["{shapes: [chain], backward: [full]}", "{shapes: [loop], chunks: 2}",
                                       "{shapes: [v], backward: [split]}", "{shapes: [chain, v, loop], chunks: 2}"])
def test_what_is_said_of_a_tool_is_what_it_runs(tmp_path: Path, placement: str) -> None:
    found = solved(tmp_path, placement)
    told = found.solver["tools"]
    assert told.keys() == TOOLS.keys()
    for name, tool in TOOLS.items():
        try:
            run = tool.run(found)
        except ValueError as refusal:
            assert told[name]["reason"] == str(refusal) and not told[name].get("as_is")
        else:
            assert told[name]["makespan"] <= run.schedule.makespan
            assert "reason" not in told[name]
            assert not told[name]["as_is"] or run.schedule.operations == found.operations
    lines = tool_lines(found)
    assert lines[0].startswith("tools     ") and len(lines) <= 2
    assert all(tool.title in " ".join(lines) for tool in TOOLS.values())


def test_a_tool_that_has_no_such_stages_gets_the_nearest_that_it_has(tmp_path: Path) -> None:
    found = solved(tmp_path, "{shapes: [chain, loop], chunks: 2}")
    nearest = found.solver["tools"]["deepspeed"]
    assert nearest["order"] == "1F1B" and "1 stage a GPU" in nearest["placement"]
    alone = elsewhere(found, ())["tools"]["deepspeed"]
    assert alone.get("makespan", float("inf")) >= nearest["makespan"]


def test_an_own_order_is_said_with_its_step(tmp_path: Path) -> None:
    found = solved(tmp_path, "{shapes: [chain], backward: [split]}")
    said = run_line(found, "megatron")
    assert said.startswith("Megatron-LM runs its own order, 1F1B") and "a step" in said
    assert run_line(found, "torchtitan") == ""


def test_nothing_is_said_of_a_block_problem() -> None:
    schedule = baseline("1f1b", pipeline(chain(2)), 4)
    assert elsewhere(schedule, ()) == {} and tool_lines(schedule) == []


def test_a_grid_says_its_tools_too(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{GRID}parallel: {{pipeline: 2, virtual: 1, recompute: none}}\n")
    found = weft.solve(tmp_path / "s.yaml", effort=0.01, time_limit=3000)
    told = found.solver["tools"]
    assert told["pytorch"]["as_is"] and told["megatron"]["makespan"] >= found.makespan * (1 - 1e-9)
