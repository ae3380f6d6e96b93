"""What a plan leaves open: every way to decide it is the plan that one would have written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.programs import mlp
from weft.models.transform.choices import Refused, Variant, one_of, unassigned, variants
from weft.models.transform.plan import TransformPlan
from weft.models.transform.transformations import split
from weft.plans import PlanError, Planned


def test_every_way_is_the_plan_written_so() -> None:
    program = mlp()
    plan = TransformPlan(program).choose("up", [("f", 2), [("b", 2), ("f", 2)], None]).assign("up", one_of(0, (0, 1)))
    plan.assign("bias act down residual loss", 0)
    found = list(variants(program, plan.calls))
    assert [tuple(one.options.values()) for one in found] == [
        (cut, where) for cut in ("f in 2", "b in 2 f in 2", "whole") for where in ("device 0", "devices 0, 1")]
    good = {one.title: one for one in found if isinstance(one, Variant)}
    assert list(good) == ["split of up: f in 2; devices of up: devices 0, 1",
                          "split of up: whole; devices of up: device 0",
                          "split of up: whole; devices of up: devices 0, 1"]
    wrong = [one for one in found if isinstance(one, Refused)]
    assert "has 4 parts beside each other, 2 devices are given" in wrong[-1].reason
    hand = TransformPlan(program).split("up", "f", 2).assign("up", (0, 1)).assign("bias act down residual loss", 0)
    assert next(iter(good.values())).planned == hand.planned


def test_a_transformation_of_ones_own_is_an_option() -> None:
    def halves(planned: Planned) -> Planned:
        return split(planned, "up act", "f", 2)

    plan = TransformPlan(mlp()).choose("up act", [halves, None])
    assert [one.options for one in variants(plan.program, plan.calls)] == [
        {"split of up act": "halves"}, {"split of up act": "whole"}]


def test_what_nobody_placed() -> None:
    program = mlp(update=True)
    plan = TransformPlan(program).assign("up bias", 0)
    assert unassigned(plan.planned) == ("act", "down", "residual", "loss")
    assert unassigned(plan.assign("*", 0).planned) == ()


def test_choices_that_are_none_are_refused() -> None:
    plan = TransformPlan(mlp())
    wrongly: list[Any] = [(0.5, 1), ["f", None], [("f", 2, 3), None]]
    for wrong, said in ((lambda: one_of(0), "chooses between two"), (lambda: one_of(1, (1,)), "chooses between two"),
                        (lambda: plan.choose("up", [None]), "between two different options"),
                        (lambda: one_of((), 1), "a group has no devices"),
                        (lambda: one_of(*wrongly[0]), "0.5 is no device"),
                        (lambda: plan.choose("q", [("f", 2), None]), "there is no operator 'q'"),
                        (lambda: plan.choose("up", [[], None]), r"the option \[\] is no split"),
                        (lambda: plan.choose("up", wrongly[1]), "the option 'f' is no split"),
                        (lambda: plan.choose("up", wrongly[2]), "is no split; give"),
                        (lambda: plan.choose("up", [("q", 2), ("f", 3)]), "3 parts do not divide")):
        with pytest.raises(PlanError, match=said):
            wrong()
    plan.choose("up", [("f", 2), None])
    with pytest.raises(PlanError, match="'split of up' is made twice"):
        plan.choose("up", [("f", 4), None])
