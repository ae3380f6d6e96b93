"""What plans leave open, decided: never worse than by hand, proven against every way where those are few, the same
numbers as one device."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from experiments.lib.published_plans import PLANS
from experiments.lib.published_plans import numbers as given
from tests.support.examples import slow
from tests.support.programs import attention, mlp, numbers, random_plan, transformer
from weft import plans
from weft.app.lib.options import SearchOptions
from weft.app.plans.lowering import lower
from weft.app.plans.solving import PlanMachine, SolvedPlan, as_written, solve_plan
from weft.models.transform.auditing import breaches
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanError, PlanProgram
from weft.plans import Part, error, uniform
from weft.solver import Infeasible, violations

#: Whole seconds, so that all of it is exact.
COSTS = {"up": 3.0, "down": 2.0, "d(act)*": 2.0, "d(w2)*": 1.0, "d(w1)*": 2.0, "d(*": 1.0, "*": 1.0}
MACHINE = PlanMachine(COSTS, uniform(0.5, 1e12), split_backward=False)


def solved(plan: TransformPlan, machine: PlanMachine = MACHINE, effort: float = 1.0) -> SolvedPlan:
    found = solve_plan(plan, machine, SearchOptions(600.0, effort))
    assert not violations(found.schedule)
    assert not breaches(found.plan.planned, found.times)
    assert found.bound <= found.makespan * (1 + 1e-9)
    return found


def piped(schedule: str) -> TransformPlan:
    return TransformPlan(mlp()).pipeline(["up bias act", "down residual loss"], [0, 1], "b", 4,
                                         schedule=schedule)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name if name == "co-shard" else slow(name) for name in PLANS])
def test_published_plans_come_out_with_their_communications_and_the_numbers_of_one_device(name: str) -> None:
    published = PLANS[name]
    small = {"devices": 2} if name == "interlaced" else {}
    hand = published.plan("1f1b", **small)
    machine = PlanMachine("a100", uniform(2e-5, 1e10))
    found = solved(published.plan(**small), machine, 0.05)
    whole = published.plan().preserve()
    assert {kind for entry in whole.communications for kind in entry.kinds} == published.kinds
    assert found.makespan <= as_written(hand, machine) * (1 + 1e-9)
    assert error(found.done, given(hand.program)) < 1e-10


def test_an_open_order_is_searched_and_given_back_as_one_more_rule() -> None:
    found = solved(piped("open"))
    assert found.proven
    hand = {schedule: as_written(piped(schedule), MACHINE) for schedule in ("1f1b", "gpipe")}
    assert found.makespan <= min(hand.values())
    assert found.makespan == solved(piped("open"), effort=0.1).makespan
    rows: dict[int, list[Part]] = {}
    for part in found.done.order:
        rows.setdefault(found.plan.planned.device(part), []).append(part)
    for row in rows.values():  # each device's parts run in the order that was found
        starts = [found.times[part] for part in row]
        assert all(one[0] <= other[0] for one, other in pairwise(starts))
    assert error(found.done, numbers(found.plan.program)) < 1e-10
    assert len(lower(found.done, 2)) == 2
    again = solved(TransformPlan.of(found.plan.planned))
    assert again.makespan <= found.makespan  # nothing is open any more; parts that are ordered are blocks of their own


@pytest.mark.parametrize(("model", "count"), [slow(mlp, 4), (attention, 1)])
def test_random_plans_keep_their_numbers_in_the_order_that_is_found(model: Callable[[], PlanProgram],
                                                                    count: int) -> None:
    draw = random.Random(f"searched {model.__name__}")
    for _ in range(count):
        plan = random_plan(model(), draw)
        found = solved(plan, PlanMachine({"*": 1.0}, uniform(0.25, 1e12), grain=draw.choice((None, 1, 3))), 0.05)
        assert found.makespan <= found.written * (1 + 1e-9)
        assert error(found.done, numbers(plan.planned.program)) < 1e-10


def test_choices_are_as_good_as_each_way_on_its_own() -> None:
    def plan(cut: str | None, where: int | tuple[int, ...]) -> TransformPlan:
        written = TransformPlan(mlp())
        if cut is not None:
            written.split("up bias act down", cut, 2)
        return written.assign("up bias act down", (0, 1)).assign("residual loss", where)

    opened = TransformPlan(mlp()).choose("up bias act down", [("f", 2), ("b", 2), None]).assign("up bias act down",
                                                                                                (0, 1))
    found = solved(opened.assign("residual loss", plans.one_of(0, 1, (0, 1))))
    each = [solved(plan(cut, where)) for cut in ("f", "b", None) for where in (0, 1, (0, 1))]
    assert found.makespan == pytest.approx(min(one.makespan for one in each))
    assert found.bound <= min(one.bound for one in each) + 1e-9
    assert found.considered == 9 and found.proven
    assert error(found.done, numbers(found.plan.program)) < 1e-10
    assert "over all 9 plans considered" in str(found)


def test_operators_that_nobody_placed_are_placed() -> None:
    few = solved(TransformPlan(mlp()).assign("up bias act", 0), PlanMachine(COSTS, uniform(0.5, 1e12), devices=2))
    assert few.complete and few.considered == 8 and few.proven
    program = transformer(batch=8, layers=1)
    forwards = " ".join(one.name for one in program.operations if one.phase == "forward")
    machine = PlanMachine({"*": 1.0}, uniform(0.25, 1e12), devices=2)
    many = solved(TransformPlan(program).split(forwards, "b", 4, in_turn=True), machine, 0.5)
    assert not many.complete and many.considered >= 3
    assert many.makespan < solved(TransformPlan(program).split(forwards, "b", 4, in_turn=True).assign("*", 0),
                                  machine).makespan
    assert {many.plan.planned.device(part) for part in many.done.order} == {0, 1}
    assert error(many.done, numbers(program)) < 1e-10
    assert "over the" in str(many)


def test_memory_decides_the_order() -> None:
    free = solved(piped("open"))
    least = max(free.schedule.peak_memory)
    static = [device.static for device in free.blocks.problem.devices]
    room = PlanMachine(COSTS, uniform(0.5, 1e12), memory=int(max(static) + least), split_backward=False)
    assert solved(piped("open"), room).makespan == pytest.approx(free.makespan)
    tight = PlanMachine(COSTS, uniform(0.5, 1e12), memory=(int(static[0]) + 1, int(static[1]) + 1),
                        split_backward=False)
    with pytest.raises(Infeasible):
        solved(piped("open"), tight)


def test_circles_are_refused_with_the_circle() -> None:
    plan = TransformPlan(mlp()).assign("up bias act", plans.one_of(0, 1)).assign("down residual loss", 1).order("down",
                                                                                                                "up")
    with pytest.raises(PlanError, match=r"in a circle: .*-\(ordered\) -> up#0"):
        solved(plan)


def test_what_cannot_be_searched_is_said() -> None:
    with pytest.raises(PlanError, match="'up' has no device: assign it, or say how many devices there are"):
        solved(TransformPlan(mlp()))
    with pytest.raises(PlanError, match="'up' is cut into parts beside each other"):
        solved(TransformPlan(mlp()).split("up", "f", 2), PlanMachine(COSTS, devices=2))
    plan = TransformPlan(mlp())
    for name in ("up", "bias", "act", "down", "residual", "loss"):
        plan.assign(name, plans.one_of(0, 1, 2))
    with pytest.raises(PlanError, match="decided in 729 ways, at most 256"):
        solved(plan)


@pytest.mark.parametrize(("wrong", "said"), [
    ({"costs": "z100"}, "there is no device 'z100'"), ({"costs": None}, "costs is None"),
    ({"costs": 3.0}, "costs is 3"),
    ({"costs": {"*": "1"}}, "takes '1' seconds"), ({"costs": {"*": 1e300}}, "a number from 0 to 1e"),
    ({"devices": 0}, "devices is 0"), ({"devices": "2"}, "devices is '2'"), ({"devices": 1}, "device 1 is assigned"),
    ({"grain": 0}, "grain is 0"), ({"memory": 1e9}, "memory is 1000000000.0"), ({"memory": "1G"}, "memory is '1G'"),
    ({"prices": "nvlink"}, "prices is 'nvlink'"),
])
def test_a_machine_that_is_none_is_refused_in_a_sentence(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        solved(TransformPlan(mlp()).assign("*", 1), PlanMachine(**{"costs": COSTS, **wrong}))


def test_an_order_inside_an_operator_over_devices_is_refused_not_broken() -> None:
    plan = TransformPlan(mlp()).split("up bias act", "f", 2).assign("up bias act", (0, 1)).assign("down residual loss",
                                                                                                  1)
    assert plan.order(("up", 0), ("up", 1)).preserve().order
    with pytest.raises(PlanError, match="up#0 is ordered before up#1: parts of an operator on several devices start"):
        solved(plan)


def test_only_plans_are_solved() -> None:
    with pytest.raises(PlanError, match="a plan is to be solved, not a PlanProgram"):
        solved(mlp())  # type: ignore[arg-type]


def test_the_public_functions() -> None:
    found = plans.solve(piped("open"), MACHINE, effort=0.1, time_limit=3000)
    assert plans.seconds(piped("1f1b"), MACHINE) >= found.makespan
    with pytest.raises(TypeError, match="unexpected keyword argument 'efort'"):
        plans.solve(piped("open"), MACHINE, efort=1)  # type: ignore[call-arg]
