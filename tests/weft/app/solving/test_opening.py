"""The first schedule of a spec: there before its other placements are made, and no answer is worse."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from tests.support import TINY_SPEC, loaded_after, valid
from weft.app.lib.case import Case
from weft.app.solving.opening import openings, solve_source
from weft.models.candidates import build
from weft.models.spec.spec import Spec, SpecError, parse_spec
from weft.solver import NoneFound, Progress, Schedule, baseline
from weft.solver.control.clock import OutOfTime

TINY = parse_spec(TINY_SPEC)


def with_placement(placement: str) -> Spec:
    return parse_spec(f"{TINY_SPEC}placement: {{{placement}}}\n")


def raising(error: BaseException) -> Any:
    def listed(*_: Any) -> Any:
        raise error

    return listed


@pytest.mark.parametrize(("error", "interrupted"), [(KeyboardInterrupt(), True), (NoneFound("no time"), False)])
def test_a_schedule_is_there_before_placements_are_listed(error: BaseException, interrupted: bool,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is the answer where listing them is broken off."""
    heard: list[Progress] = []
    monkeypatch.setattr("weft.app.solving.opening.case_of", raising(error))
    found = valid(solve_source(TINY, None, weft.SearchOptions(), heard.append))
    assert heard and found.makespan == heard[-1].best.makespan
    assert all(progress.best.value_bound == 0 for progress in heard)  # nothing is known of the other placements
    assert found.solver.get("interrupted", False) == interrupted
    assert found.solver["placement"] and found.solver["static_memory"]


def test_candidates_are_made_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return candidate_of(*arguments)

    candidate_of = build.candidate_of
    monkeypatch.setattr(build, "candidate_of", counted)
    next(openings(TINY, None, weft.SearchOptions()))
    assert len(made) == 1


def test_1f1b_is_heard_of_on_all_placements_before_they_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no placement is soon made; and a search that has no time for it goes on without."""
    def of_first(case: Case, *_: Any) -> Schedule:
        return baseline("gpipe", case.placements[0].problem, case.micro_batches)

    heard: list[Progress] = []
    monkeypatch.setattr("weft.app.solving.opening.solve_case", of_first)
    monkeypatch.setattr("weft.app.solving.opening.openings", lambda *_: iter(()))
    found = solve_source(TINY, None, weft.SearchOptions(), heard.append)
    assert heard and found.makespan <= heard[-1].best.makespan and heard[-1].best.solver["name"] == "1f1b"
    monkeypatch.setattr("weft.app.lib.placements.time_orders", raising(OutOfTime()))
    assert solve_source(TINY, None, weft.SearchOptions()).solver["name"] == "gpipe"


def test_no_progress_and_no_answer_is_worse() -> None:
    heard: list[float] = []
    found = weft.solve(TINY, effort=0.2, on_progress=lambda progress: heard.append(progress.best.makespan))
    assert heard == sorted(heard, reverse=True)
    assert found.makespan == heard[-1] <= next(openings(TINY, None, weft.SearchOptions())).makespan
    assert found.solver["placements"] > 1


def test_an_opening_that_stays_the_best_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time was too short for its placement."""
    first = next(openings(TINY, None, weft.SearchOptions()))
    monkeypatch.setattr("weft.app.solving.opening.solve_case", lambda *_: first.with_operations(
        [o._replace(start=2 * o.start, end=2 * o.end) for o in first.operations]))
    assert solve_source(TINY, None, weft.SearchOptions()).makespan == first.makespan


def test_a_tiny_spec_is_solved_without_a_solver_and_a_library_of_graphs() -> None:
    """They, the zoo of families, and what groups of GPUs and plans of memory need take as long to import as the rest of
    such a search."""
    code = f"import weft, weft.models.spec.spec as spec; weft.solve(spec.parse_spec({TINY_SPEC!r}))"
    assert loaded_after(code, "torch", "ortools", "altair", "networkx", "weft.models.zoo.published",
                        "weft.models.tensor_parallel.shapes", "weft.solver.placement", "weft.app.lib.wide") == []


@pytest.mark.parametrize("spec", [
    with_placement("memory: decide"), with_placement("choices: [backward]"), with_placement("shapes: [m]"),
    parse_spec(TINY_SPEC.replace("memory: 2 GiB", "memory: 1 MiB"))])
def test_there_is_none_where_the_spec_may_be_refused(spec: Spec) -> None:
    assert not list(openings(spec, None, weft.SearchOptions()))


def test_there_is_none_for_other_sources_objectives_and_counts() -> None:
    problem = build.candidates(TINY)[0].problem
    assert not list(openings(problem, 4, weft.SearchOptions()))
    assert not list(openings(TINY, None, weft.SearchOptions(objective="span")))
    assert not list(openings(TINY, -1, weft.SearchOptions()))
    assert not list(openings(TINY, 10**7, weft.SearchOptions()))


def test_a_refused_spec_is_heard_of_nothing() -> None:
    """Memory that is decided and recomputed throughout."""
    heard: list[Progress] = []
    spec = parse_spec(TINY_SPEC.replace("training: {", "training: {recompute: true, ")
                      + "placement: {memory: decide}\n")
    with pytest.raises(SpecError):
        solve_source(spec, None, weft.SearchOptions(), heard.append)
    assert not heard
