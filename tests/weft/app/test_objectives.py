"""What a source is solved for: from Python and the command line, over placements, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.support import TINY_SPEC, chain, pipeline, ran, v
from weft.models.spec.spec import parse_spec
from weft.solver import Problem, save_problem
from weft.solver.judge.spans import span_of


@pytest.fixture
def even() -> Problem:
    """A V of four devices in halves, with the memory of 1F1B."""
    return pipeline(v(4), forward=0.5, split=(0.5, 0.5), memory=8)


def test_the_best_span_over_placements_is_not_above_any_makespan() -> None:
    spec = parse_spec(TINY_SPEC)
    span, makespan = (weft.solve(spec, objective=objective, effort=1.0) for objective in ("span", "makespan"))
    assert span_of(span)[0] == pytest.approx(span.value) and span.value <= span_of(makespan)[0] * (1 + 1e-9)
    assert span.solver["bound_over_placements"] <= span.value_bound * (1 + 1e-9) <= span.value * (1 + 2e-9)


def test_the_best_rate_over_placements() -> None:
    rate = weft.solve(parse_spec(TINY_SPEC), objective="rate", micro_batches=12, effort=1.0)
    assert rate.value == rate.period and rate.value <= rate.makespan / 12
    assert rate.solver["bound_over_placements"] <= rate.value * (1 + 1e-9)


def test_a_latency_is_that_of_the_search_for_latencies(even: Problem) -> None:
    found = weft.solve(even, micro_batches=4, objective="latency", period=4, effort=2.0)
    point, = weft.latency(even, micro_batches=4, period=4, effort=2.0).points
    assert (found.objective, found.value, found.value_bound) == ("latency", point.latency, point.bound)
    assert found.operations == point.schedule.operations


def test_known_schedules_are_timed_for_the_span(even: Problem) -> None:
    table = weft.compare(even, micro_batches=8, objective="span", effort=0.5)
    rows = {row.name: row for row in table.rows}
    assert rows["zb-v"].span == rows["weft"].span == rows["weft"].bound == 24
    assert "weft: lower bound on the span 24000.0 ms, proven optimal" in str(table)
    assert "span" not in weft.compare(pipeline(chain(2)), micro_batches=2, effort=0.05).to_json()["rows"][0]


@pytest.mark.parametrize(("arguments", "fault"), [
    (["--objective", "latency"], "the objective 'latency' needs a floor of throughput: give the throughput "),
    (["--period", "3"], "throughput and period are floors for the objective 'latency', not for 'makespan'"),
    (["--objective", "rate"], "the best steady state found takes more micro-batches (2): no whole period fits "),
])
def test_what_means_nothing_is_one_sentence(arguments: list[str], fault: str, even: Problem, tmp_path: Path) -> None:
    save_problem(even, tmp_path / "v.json")
    ended = ran("solve", tmp_path / "v.json", "-n", 2, "--effort", 0.5, "--quiet", *arguments)
    assert ended.status != 0 and fault in ended.err and len(ended.err.splitlines()) == 1


def test_what_searches_for_the_makespan_only_says_so(even: Problem) -> None:
    with pytest.raises(ValueError, match="objective is 'span', it must be makespan here"):
        weft.explain(even, micro_batches=4, objective="span", effort=0.1)
    with pytest.raises(ValueError, match="objective is 'rate', it must be one of makespan, span here"):
        weft.compare(even, micro_batches=4, objective="rate", effort=0.1)
