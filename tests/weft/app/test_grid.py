"""``weft solve`` of a spec with a uniform grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import weft
from tests.models.grid.test_pipeline import spec_of
from weft.app.grid import solve_grid
from weft.app.lib.case import Case, case_of
from weft.app.solving.solve import solve_case
from weft.cli.lib.output import summary
from weft.models.spec.spec import SpecError
from weft.solver import Progress, Schedule, violations
from weft.solver.control.clock import is_over

FIXED = ("{tensor: 2, pipeline: 4, virtual: 2, data: 4, expert: 1, context: 1, zero: 1, recompute: none, "
         "micro_batch: 1}")


def test_the_best_grid_is_a_judged_schedule_with_a_bound_on_all() -> None:
    spec = spec_of()
    found = weft.solve(spec, effort=1, time_limit=3000)
    assert not violations(found)
    told = found.solver["grid"]
    assert told["step"] == found.makespan + told["end"]["seconds"]
    assert told["bound_over_grids"] <= told["bound"] <= told["step"]
    assert told["tensor"] * told["pipeline"] * told["data"] * told["context"] == 32
    assert told["micro_batches"] == found.micro_batches
    assert all(other["step"] >= told["step"] >= other["bound"] or other["bound"] >= told["step"]
               for other in told["others"])
    assert 0 < told["model_flops_utilization"] < 1
    text = summary(found)
    assert f"grid      {told['title']}, 32 GPUs" in text
    assert "any cut and order" in text
    assert told["free_groups"] > 0 and "groups of any size, without the end of the step" in text


def test_the_time_to_prepare_ends_no_search_inside_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.SearchOptions, "for_preparation", 0.0)  # as it is when the second grid is searched
    seen = []

    def solve(case: Case, options: weft.SearchOptions, on_progress: Callable[[Progress], None]) -> Schedule:
        seen.append(is_over())
        return solve_case(case, replace(options, effort=0.01), on_progress)

    solve_grid(spec_of(), weft.SearchOptions(time_limit=3000), solve=solve)
    assert seen and not any(seen)


def test_degrees_that_are_given_are_what_is_solved() -> None:
    found = weft.solve(spec_of(FIXED), effort=0.5, time_limit=3000)
    told = found.solver["grid"]
    assert told["title"] == "TP2 PP4 VP2 DP4 micro-batch 1"
    assert [device.name for device in found.problem.devices] == ["gpu0-7", "gpu8-15", "gpu16-23", "gpu24-31"]
    assert len(found.solver["layers_of_stage"]) == 8
    assert told["listed"] == 1


def test_a_run_with_an_effort_repeats() -> None:
    one, two = (weft.solve(spec_of("{tensor: 2, pipeline: 4}"), effort=0.5, time_limit=3000) for _ in range(2))
    assert one.operations == two.operations
    assert one.solver["grid"] == two.solver["grid"]


def test_a_layout_that_is_given_is_what_runs() -> None:
    spec = spec_of(FIXED, more='placement: {layout: "Et|(t|)*5,t|t,L", chunks: 2}')
    found = weft.solve(spec, effort=0.5, time_limit=3000)
    assert [len(names) for names in found.solver["layers_of_stage"]] == [2, 1, 1, 1, 1, 1, 1, 2]


def test_other_commands_take_a_grid_that_is_given_whole() -> None:
    case = case_of(spec_of(FIXED))
    assert {placement.title for placement in case.placements} == {"loop, 2 chunks, B", "loop, 2 chunks, I+W"}
    with pytest.raises(SpecError, match=r"virtual, expert, .* to be searched, which weft solve does"):
        case_of(spec_of("{tensor: 2}"))


def test_what_a_grid_is_not_searched_for() -> None:
    with pytest.raises(ValueError, match="searched for the makespan"):
        weft.solve(spec_of(), objective="rate")
    with pytest.raises(ValueError, match="is what the grid makes of the batch"):
        weft.solve(spec_of(), micro_batches=8)
    with pytest.raises(SpecError, match=r"does not divide cluster\.gpus"):
        weft.solve(spec_of("{tensor: 3}"))


def test_nothing_fits() -> None:
    spec = spec_of()
    tight = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"memory": (1100 * 1024**2,)})})
    with pytest.raises(ValueError, match="no grid of 32 GPUs has these numbers and fits"):
        weft.solve(tight)


def test_a_grid_that_is_open_is_compared_on_the_best_one() -> None:
    found = weft.compare(spec_of("{recompute: none}"), effort=0.5, time_limit=3000)
    told = found.weft.solver["grid"]
    assert told["step"] == found.weft.makespan + told["end"]["seconds"] and "32 GPUs" in str(found)
    assert "any cut and order" in found.caption()
    assert all(row.makespan >= found.weft.makespan for row in found.rows if row.fits)
    assert {"1f1b", "weft"} <= {row.name for row in found.rows}
