"""The check of times finds each fault that is planted, and none where there is none."""

from __future__ import annotations

import pytest

from tests.support.programs import mlp
from weft.models.transform.auditing import breaches
from weft.models.transform.plan import TransformPlan
from weft.models.transform.planned import Part

Times = dict[Part, tuple[float, float]]


def planned(**calls: str) -> TransformPlan:
    return TransformPlan(mlp()).split("up bias act", "f", 2).assign("up bias act", (0, 1)).assign("down residual loss",
                                                                                                  1)


def in_a_row(plan: TransformPlan) -> Times:
    return {part: (float(i), i + 1.0) for i, part in enumerate(plan.preserve().order)}


@pytest.mark.parametrize("tensor_of", ["act", "up", "d(act) by down.0"])
def test_what_is_read_too_soon_is_found(tensor_of: str) -> None:
    plan = planned()
    times = in_a_row(plan)
    part = Part(tensor_of, 0)
    late = {**times, part: (1000.0, 1001.0)}
    found = breaches(plan.planned, late)
    assert found and all(f"reads {tensor_of} before all of it is made" in one for one in found)


def test_parts_that_overlap_are_missing_or_are_no_parts_are_found() -> None:
    plan = planned()
    times = in_a_row(plan)
    first, second = Part("residual", 0), Part("loss", 0)
    start, end = times[second]
    assert breaches(plan.planned, {**times, second: (start - 0.5, end)}) and "run on device 1 at once" in breaches(
        plan.planned, {**times, second: (start - 0.5, end)})[0]
    assert breaches(plan.planned, {part: span for part, span in times.items() if part != first}) == [
        "residual#0 does not run"]
    assert breaches(plan.planned, {**times, Part("up", 7): (0.0, 0.1)})[0] == "up#7 is no part of the plan"


def test_orders_are_held() -> None:
    plan = planned()
    times = in_a_row(plan)
    order = plan.preserve().order
    one, other = (part for part in order if part.operation in ("d(w1) by up.1", "d(b1) by bias.1") and part.number == 0)
    plan.order(other, one)
    assert breaches(plan.planned, times) == [f"{one} starts before {other} ends, which is ordered before it"]


def test_what_another_device_makes_at_the_same_time_comes_too_late() -> None:
    plan = TransformPlan(mlp()).assign("up bias act", 0).assign("down residual loss", 1)
    times = in_a_row(plan)
    made = times[Part("act", 0)]
    found = breaches(plan.planned, {**times, Part("down", 0): made})
    assert "down#0 reads act before all of it is made" in found
    plan = TransformPlan(mlp()).split("up bias act", "f", 2).assign("up bias act", (0, 1)).assign("down residual loss",
                                                                                                  1)
    plan.order(("up", 0), ("up", 1))
    times = in_a_row(plan)
    assert breaches(plan.planned, {**times, Part("up", 1): times[Part("up", 0)]})[0].endswith("ordered before it")


@pytest.mark.parametrize("span", [(2.0, 1.0), (-3.0, -2.0), (float("nan"), float("nan")), (0.0, float("inf"))])
def test_times_that_are_no_span_are_found(span: tuple[float, float]) -> None:
    plan = planned()
    assert "which is no span of a step" in breaches(plan.planned, {**in_a_row(plan), Part("loss", 0): span})[0]
