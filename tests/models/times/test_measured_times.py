"""Measured times of operators: where a figure comes from, and how what was not measured is filled in."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.models.graph.operators import Operator, OperatorError, OperatorGraph, Tensor, Work
from weft.models.times.measured_times import (
    Figure,
    MeasuredOperator,
    MeasuredTimes,
    load_times,
    save_times,
    times_from_json,
    times_to_json,
)
from weft.models.times.operator_times import OperatorTime, OperatorTimes, Origin
from weft.solver.io.entries import FormatError


def linear(name: str, flops: float) -> Operator:
    return Operator(name, "linear", Work(flops, 100, 100), ("x",), (Tensor(f"{name}.y", 8),), Work(flops, 10, 10),
                    Work(flops, 10, 10), keeps=(f"{name}.y",))


GRAPH = OperatorGraph("m", (
    linear("small", 100), linear("large", 10_000), linear("huge", 40_000),
    Operator("other", "conv2d", Work(5_000, 10, 10), ("x",)), Operator("view", "view", Work(), ("x",)),
), (Tensor("x", 8),))


def measured(seconds: float) -> Figure:
    return Figure(seconds, Origin.MEASURED, 0.1, 7)


TIMES = MeasuredTimes("m", "CPU", "2.13", (
    MeasuredOperator("linear", "[1]", ("small",), measured(1.0), measured(2.0), measured(3.0), measured(8.0),
                     measured(9.0)),
    MeasuredOperator("linear", "[2]", ("large",), measured(50.0), measured(60.0), measured(70.0)),
    MeasuredOperator("linear", "[3]", ("huge",), note="needs more than is free"),
    MeasuredOperator("conv2d", "[4]", ("other",), note="torch cannot run it"),
))


def test_what_was_not_run_is_scaled_from_the_nearest_of_its_kind_else_modelled() -> None:
    source: OperatorTimes = TIMES
    times = source.times(GRAPH)
    assert times["small"] == OperatorTime(1.0, 2.0, 3.0, Origin.MEASURED)
    assert times["huge"] == OperatorTime(200.0, 240.0, 280.0, Origin.INTERPOLATED)  # 4 x large
    assert times["other"] == OperatorTime(5_000 / 200, 0.0, 0.0, Origin.MODELLED)  # at the best rate measured
    assert times["view"] == OperatorTime(0.0, 0.0, 0.0, Origin.MODELLED)


def test_the_notes_say_what_was_filled_in_and_how() -> None:
    assert TIMES.notes(GRAPH) == [
        "linear [3] (1 operator, first 'huge'): needs more than is free; its time is interpolated",
        "conv2d [4] (1 operator, first 'other'): torch cannot run it; its time is modelled",
        "view (1 operator, first 'view'): not in the profile; its time is modelled"]
    lines = list(TIMES.filled_in(GRAPH).summary())
    assert lines[0] == "m on CPU: 5 operators, 5 distinct"
    assert lines[1] == ("times      6 measured, 3 interpolated, 2 modelled; "
                        "spread of the measured: median 10%, largest 10%")


def test_without_any_measurement_there_is_no_time() -> None:
    empty = MeasuredTimes("m", "CPU", "2.13", ())
    with pytest.raises(OperatorError, match="operator 'small' has no time, and the profile of CPU has none"):
        empty.times(GRAPH)


def test_memory_that_was_not_measured_is_the_graphs() -> None:
    entry = TIMES.filled_in(GRAPH).by_name["huge"]
    assert entry.saved == Figure(8, Origin.MODELLED) and entry.peak == Figure(8, Origin.MODELLED)
    assert TIMES.filled_in(GRAPH).by_name["small"].saved == measured(8.0)


def test_a_file_goes_round(tmp_path: Path) -> None:
    save_times(TIMES.filled_in(GRAPH), tmp_path / "t.json")
    assert load_times(tmp_path / "t.json") == TIMES.filled_in(GRAPH)


def test_a_fault_is_said_with_its_place() -> None:
    value = times_to_json(TIMES)
    value["operators"][0]["forward"]["origin"] = "guessed"
    with pytest.raises(FormatError, match=r"t\.json: operators\[0\]: forward: origin is 'guessed', it must be"):
        times_from_json(value, "t.json")
    value["operators"][0]["forward"] = {"value": -1, "origin": "measured"}
    with pytest.raises(FormatError, match=r"operators\[0\]: forward: value is -1, it must be 0 or more"):
        times_from_json(value, "t.json")
    value["operators"][0]["names"] = []
    with pytest.raises(FormatError, match=r"operators\[0\]: names must be a list of at least one"):
        times_from_json(value, "t.json")
