"""What a proof over placements covers is named wherever it is said: in tables, in text and in numbers."""

from __future__ import annotations

from pathlib import Path

import weft
from tests.support import SPECS, chain, pipeline, shows
from weft.app.lib.case import case_of
from weft.app.lib.coverage import NOTHING, Coverage
from weft.models.spec.spec import load_spec
from weft.solver.io.schedule_files import load_schedule

SPEC = SPECS / "tiny.yaml"
COVERED = "every cut of the 9 layers (1 stage a GPU; V, 2 chunks; loop, 2 chunks; wave, 3 chunks; loop, 3 chunks; I+W)"
#: Beside them, the whole model on every GPU.
WHOLE = (" and the 2 other placements considered (data parallel, all-reduce, update; data parallel, reduce-scatter, "
         "update, all-gather; one cut of each)")


def plain(text: str) -> str:
    """``text`` without the line ends of a table's caption."""
    return " ".join(text.split())


def test_titles_that_are_there_twice_are_several_cuts() -> None:
    layers = {"layers_of_stage": [["a"], ["b", "c"]]}
    found = Coverage.of([("V, B", layers), ("V, B", {"layers_of_stage": [["a", "b"], ["c"]]}), ("M", {})])
    assert found.text() == "the 3 placements considered (V, B: 2 cuts; M)"
    assert found.to_json() == [{"placement": "V, B", "cut": [1, 2]}, {"placement": "V, B", "cut": [2, 1]},
                               {"placement": "M", "cut": []}]
    assert Coverage.of([("V, B", layers)]).text() == "the one placement considered (V, B)"
    assert Coverage.of([(f"M{i}", {}) for i in range(15)]).text().endswith("; M11; 3 more; one cut of each)")


def test_a_block_problem_is_placed_already() -> None:
    assert case_of(pipeline(chain(2)), 4).coverage.text() == NOTHING.text() == ""


def test_solve_says_and_saves_what_its_proof_covers(tmp_path: Path) -> None:
    output = tmp_path / "schedule.json"
    text = shows("solve", SPEC, "--effort", "0.5", "--quiet", "-o", output)
    assert f"covered   proven optimal over {COVERED}{WHOLE}; other shapes may be faster" in text
    schedule = load_schedule(output)
    assert schedule.solver["covered"] == COVERED + WHOLE
    stages = {entry["placement"]: len(entry["cut"]) for entry in schedule.solver["alternatives"]}
    assert stages.items() >= {"1 stage a GPU, I+W": 2, "V, 2 chunks, I+W": 4, "loop, 2 chunks, I+W": 4}.items()
    assert "no schedule of this placement is shorter (proven)" in shows("explain", output)


def test_sweep_and_latency_name_what_their_gaps_are_over() -> None:
    spec = load_spec(SPEC)
    swept = weft.sweep(spec, effort=0.3, refine=False)
    assert f"gaps are over {COVERED}; other shapes may be faster" in plain(str(swept))
    assert swept.to_json()["rows"][0]["covered"] == COVERED


def test_latency_names_what_its_bound_is_over() -> None:
    spec = SPECS / "gpt-1.3b-inference.yaml"
    served = weft.latency(spec, effort=0.3, period=0.1)
    assert ("on the 3 placements considered (1 stage a GPU, inference; V, 2 chunks, inference; loop, 2 chunks, "
            "inference; one cut of each); other cuts and shapes may be faster") in plain(served.caption())
    assert [entry["placement"] for entry in served.to_json()["covered"]] == [
        "1 stage a GPU, inference", "V, 2 chunks, inference", "loop, 2 chunks, inference"]
