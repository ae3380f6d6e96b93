from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import weft
from weft.app.family.result import Family
from weft.app.family.run import pinned_case
from weft.app.lib.case import case_of
from weft.app.sweep.cache import Solved, solve_point
from weft.models.phases.plans import plan_of
from weft.models.spec.spec import SpecError, parse_spec
from weft.solver import Problem, violations

#: Long sequences fit on one GPU a stage only; the first steps are faster with all layers on every GPU.
SPEC = """
name: growing
model: {family: gpt, layers: 4, hidden: 512, heads: 8, vocabulary: 4096, sequence: 128}
cluster: {gpus: 2, device: a100, memory: 8 GiB}
training: {micro_batches: 4}
placement: {chunks: 1}
phases:
  steps: 1000
  sequence: [[0, 128], [400, 512], [700, 128]]
"""
OPTIONS = weft.SearchOptions(effort=0.5)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Family, Path]:
    cache = tmp_path_factory.mktemp("cache")
    return weft.family(parse_spec(SPEC), options=OPTIONS, cache=cache, workers=1), cache


def test_the_family_is_no_longer_than_any_plan_alone_and_no_shorter_than_its_bound(found: tuple[Family, Path]) -> None:
    family, _ = found
    assert family.bound <= family.total <= min(family.fixed)
    steps = sum((part.last - part.first) * part.step_time for part in family.parts)
    assert family.total == pytest.approx(steps + sum(switch.seconds for switch in family.switches))
    assert [part.first for part in family.parts] == [0, 400, 700] and family.parts[-1].last == 1000
    assert [switch.step for switch in family.switches] == [
        after.first for before, after in pairwise(family.parts) if before.plan != after.plan]
    for part, schedule in zip(family.parts, family.schedules, strict=True):
        assert schedule is not None and not violations(schedule)
        assert schedule.makespan == part.step_time and part.best == min(part.step_times)


def test_equal_parts_are_solved_once_and_known_ones_not_again(found: tuple[Family, Path]) -> None:
    family, cache = found
    assert family.parts[0].step_times == family.parts[2].step_times
    told: list[tuple[int, int, int]] = []
    again = weft.family(parse_spec(SPEC), options=OPTIONS, cache=cache, workers=1,
                        on_progress=lambda progress: told.append((progress.done, progress.points, progress.cached)))
    assert again.to_json() == family.to_json()
    assert told[-1][0] == told[-1][1] == told[-1][2] == again.cached


def test_it_is_saved_as_numbers_and_as_a_picture(found: tuple[Family, Path], tmp_path: Path) -> None:
    family, _ = found
    for ending in ("json", "svg"):
        family.save(tmp_path / f"family.{ending}")
    said = json.loads((tmp_path / "family.json").read_text())
    assert said["format"] == "weft.family/1" and said["total"] == family.total
    assert set(said) == {"format", "name", "time_unit", "settings", "plans", "parts", "switches", "total", "bound",
                         "best_fixed", "best_fixed_total"}
    assert "ms a step" in (tmp_path / "family.svg").read_text()
    assert "growing: 1,000 steps" in str(family)


@pytest.mark.parametrize("shapes", ["chain", "v", "tensor", "m", "data", pytest.param("x", marks=pytest.mark.slow)])
def test_a_plan_is_the_same_where_it_was_found(shapes: str) -> None:
    spec = parse_spec(SPEC[:SPEC.index("placement")] + f"placement: {{shapes: [{shapes}]}}\n")
    whole = solve_point(case_of(spec), OPTIONS)
    assert isinstance(whole, Solved)
    plan = plan_of(spec, whole.weft.problem, whole.weft.solver, whole.weft.choices)
    case = pinned_case(spec, plan)
    assert case is not None
    again = solve_point(case, OPTIONS)
    assert isinstance(again, Solved)
    assert plan_of(spec, again.weft.problem, again.weft.solver, again.weft.choices) == plan
    assert _costs(again.weft.problem) == _costs(whole.weft.problem)


def _costs(problem: Problem) -> object:
    return sorted((block.name, block.duration, block.devices, block.memory) for block in problem.blocks)


def test_a_plan_that_does_not_fit_is_left_out() -> None:
    spec = parse_spec(SPEC[:SPEC.index("phases")])
    solved = solve_point(case_of(spec), OPTIONS)
    assert isinstance(solved, Solved)
    plan = plan_of(spec, solved.weft.problem, solved.weft.solver, solved.weft.choices)
    tight = parse_spec(SPEC[:SPEC.index("phases")].replace("8 GiB", "1100 MiB"))
    assert pinned_case(tight, plan) is None


def test_a_spec_with_phases_is_no_single_plan() -> None:
    with pytest.raises(SpecError, match="phases make it a family of plans, which weft family finds"):
        weft.solve(parse_spec(SPEC))


def test_what_has_no_phases_is_no_family() -> None:
    with pytest.raises(SpecError, match="phases is missing"):
        weft.family(parse_spec(SPEC[:SPEC.index("phases")]), cache=None)
