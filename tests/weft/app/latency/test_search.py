"""Latency against throughput over all placements: fronts, floors, refusals, and what the command prints and writes."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support.builders import loop, pipeline, together_spec
from tests.support.commands import refusal, shows
from weft.app.latency.serving import Serving, parse_period, parse_throughput
from weft.app.lib.case import case_of
from weft.models.spec.spec import parse_spec
from weft.solver import Block, BlockKind, Dependency, Device, Infeasible, Problem, load_schedule, save_problem, validate

#: Stages of 13 and 9 in a chain, of 12 and 10 in a V, of 11 and 11 in a loop: each placement has its use.
SPEC = {
    "name": "uneven",
    "model": {"layers": [{"name": name, "forward": f"{time} ms", "activation_memory": "1 MiB", "output": 0}
                         for name, time in (("a", 9), ("b", 8), ("c", 2), ("d", 3))]},
    "cluster": {"gpus": 2, "memory": "2 GiB", "bandwidth": "10 GB/s", "latency": 0},
    "inference": {"micro_batches": 6, "micro_batch_size": 4},
}


def front(serving: Serving) -> list[tuple[float, float]]:
    return [(round(point.period, 9), round(point.latency, 9)) for point in serving.points]


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "loop.json"
    save_problem(Problem("loop", (Device("x"), Device("y")), pipeline(loop(2), forward=2, backward=None).blocks,
                         time_unit="step", memory_unit="unit"), path)
    return path


def test_every_placement_that_is_best_somewhere_is_on_the_front() -> None:
    found = weft.latency(parse_spec(json.dumps(SPEC)), effort=20.0)
    assert [point.placement.split(",")[0] for point in found.points][-1] == "1 stage a GPU"
    assert len({point.placement for point in found.points}) > 1
    assert front(found)[-1] == (0.013, 0.022)
    assert [point.gap for point in found.points] == [0] * len(found.points)
    for point in found.points:
        validate(point.schedule)
        assert point.schedule.micro_batches == 6
        assert point.schedule.solver["placement"] == point.placement
        at_floor = weft.latency(parse_spec(json.dumps(SPEC)), period=point.period, effort=20.0)
        assert front(at_floor) == [(round(point.period, 9), round(point.latency, 9))]
        assert at_floor.points[0].bound == pytest.approx(point.bound)


def test_a_floor_that_cannot_be_met_says_what_can(problem: Path) -> None:
    with pytest.raises(Infeasible, match=r"0\.5 micro-batches/step cannot .* found is 0\.25/step .*proven"):
        weft.latency(problem, throughput=0.5, effort=5.0)


def test_what_never_gives_back_has_no_throughput() -> None:
    keeps = Problem("keeps", (Device("x", 10),), (Block("a", BlockKind.FORWARD, (0,), 1, (1,)),))
    with pytest.raises(Infeasible, match="no steady state"):
        weft.latency(keeps)


def test_dependencies_across_micro_batches_limit_the_throughput() -> None:
    """b waits for a, and the next a for b: one micro-batch every 2 at most, though each device works 1."""
    wait = Block("a", BlockKind.FORWARD, (0,), 1, after=(Dependency("b", distance=1),))
    turns = Problem("turns", (Device("x"), Device("y")), (
        wait, Block("b", BlockKind.FORWARD, (1,), 1, after=(Dependency("a"),))))
    assert front(weft.latency(turns, effort=5.0)) == [(2, 2)]
    with pytest.raises(Infeasible, match="cannot be met"):
        weft.latency(turns, period=1.5, effort=5.0)


def test_an_interrupt_keeps_the_points_found(problem: Path) -> None:
    def interrupt(serving: Serving) -> None:
        raise KeyboardInterrupt

    found = weft.latency(problem, effort=10.0, on_progress=interrupt)
    assert found.interrupted and front(found) == [(6, 8)]
    assert "interrupted" in str(found)


def test_what_is_asked_for_in_units() -> None:
    assert parse_period("80 ms", "s") == Fraction(8, 100)
    assert parse_period(3, "step") == parse_period("3 step", "step") == 3
    assert parse_throughput("12.5/s", "s") == parse_throughput(12.5, "s") == Fraction(25, 2)
    assert parse_throughput("0.5/ms", "s") == 500
    assert parse_throughput("0.25/step", "step") == Fraction(1, 4)


@pytest.mark.parametrize(("parse", "text", "unit"), [
    *((parse_throughput, text, "s") for text in ("x/s", "0/s", "-1", "nan/s", "1/h")),
    (parse_throughput, "1/s", "step"), (parse_period, "5 parsec", "s"), (parse_period, "0 ms", "s"),
    (parse_period, "x", "step"), (parse_period, -1, "step")])
def test_a_floor_that_means_nothing_is_refused(parse: Any, text: object, unit: str) -> None:
    said = "throughput is .*must be micro-batches per time" if parse is parse_throughput else "period is .*must be"
    with pytest.raises(ValueError, match=said):
        parse(text, unit)


def test_one_floor_and_at_least_two_points(problem: Path) -> None:
    with pytest.raises(ValueError, match="say the same"):
        weft.latency(problem, throughput=1, period=1)
    with pytest.raises(ValueError, match="points is 1"):
        weft.latency(problem, points=1)


def test_the_command_writes_the_schedule_at_a_floor(problem: Path, tmp_path: Path) -> None:
    output = tmp_path / "schedule.json"
    told = shows("latency", problem, "--throughput", "0.2/step", "-n", "5", "--effort", "10", "--json", "--quiet",
                  "-o", output)
    assert json.loads(told)["points"][0]["latency"] == 10
    schedule = load_schedule(output)
    assert schedule.micro_batches == 5 and schedule.period == 4
    assert weft.check(output) == []
    longer = weft.unroll(output, 9)  # which runs blocks as early as it can
    assert longer.micro_batches == 9 and "latency" not in longer.solver


def test_the_command_s_status_where_the_floor_cannot_be_met(problem: Path) -> None:
    assert "cannot be met" in refusal("latency", problem, "--period", "3", "--effort", "5", status=1)
    assert "a latency is written as" in refusal("latency", problem, "-o", "front.txt")


def test_gpus_that_compute_together_are_each_counted() -> None:
    """A device of the placement stands for several GPUs; the answer names every one, and what it holds."""
    text = together_spec("groups, x")
    case = case_of(parse_spec(text))
    assert any(len(group) > 1 for placement in case.placements for group in placement.gpus)
    found = weft.latency(parse_spec(text), throughput="1/s", effort=2.0)
    assert found.devices == 4 and len(found.points[0].peak) == 4
    assert len(found.points[0].schedule.problem.devices) == 4
    assert "X" not in found.points[0].placement  # two replicas are two micro-batches a period
    with pytest.raises(Infeasible, match="several replicas"):
        weft.latency(parse_spec(text.replace("groups, x", "x")), throughput="1/s", effort=2.0)
