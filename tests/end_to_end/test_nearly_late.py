"""Whatever is called with little time left gives a valid answer, or says that none was found in time: of what can be
done no sentence says that it cannot. No test looks at a real clock: time passes by being looked at."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import weft
from tests.support import TINY_SPEC, chain, pipeline, slow, valid
from tests.support.programs import mlp
from weft import communication as comm
from weft import plans
from weft.app.plans.solving import PlanMachine
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.models.layouts.conversion import uniform
from weft.models.spec.spec import parse_spec
from weft.models.transform.auditing import breaches
from weft.models.transform.plan import TransformPlan
from weft.solver import Budget, NoneFound, Problem, validate, violations
from weft.solver.control.clock import OutOfTime
from weft.solver.judge.choice_rules import violations_of_choice

#: Seconds of each call: what CP-SAT, which has a clock of its own, may take at most.
LIMIT = 1.0

_GRAPH = """
name: branches
model: {family: mmt, branches: 2, layers: 1, hidden: 64, heads: 2, feed_forward: 64, sequence: 16}
cluster: {gpus: 2, memory: 4 GiB, device: v100, links: nvlink-v100}
training: {micro_batches: 4, micro_batch_size: 2}
"""
_PRICES = comm.Prices(bandwidth=50e9, memory=1e12, flops=50e12, launch=5e-6)
_MACHINE = PlanMachine({"up": 3.0, "down": 2.0, "*": 1.0}, uniform(0.5, 1e12), split_backward=False, devices=3)


@contextmanager
def _time_that_goes_on(most: int) -> Iterator[None]:
    """Every look at the clock takes the ``most``-th part of the limit."""
    now = time.monotonic()

    def clock() -> float:
        nonlocal now
        now += LIMIT / most
        return now

    begin = Budget.__post_init__

    def post_init(self: Budget) -> None:
        self.now = clock
        begin(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock)
        patch.setattr(Budget, "__post_init__", post_init)
        yield


def _bounded(makespan: float, bound: float) -> None:
    assert 0 <= bound <= makespan * (1 + 1e-9) < math.inf


def _problem() -> Problem:
    return pipeline(chain(3), forward=1, backward=2, memory=3)


def _solve() -> None:
    for source in (parse_spec(TINY_SPEC), _problem()):
        found = valid(weft.solve(source, micro_batches=4, time_limit=LIMIT))
        _bounded(found.makespan, found.makespan_bound)


def _compare() -> None:
    found = weft.compare(_problem(), micro_batches=4, time_limit=LIMIT)
    validate(found.weft)


def _latency() -> None:
    found = weft.latency(pipeline(chain(3), forward=2, backward=None), micro_batches=4, points=2, time_limit=LIMIT)
    for point in found.points:
        validate(point.schedule)


def _sweep() -> None:
    found = weft.sweep(_problem(), micro_batches=[4], workers=1, cache=False, time_limit=LIMIT)
    assert not found.left_out and len(found.rows) + len(found.unsolved) == 1
    for row in found.rows:
        _bounded(row.makespan, row.bound)


def _share() -> None:
    found = weft.share(_problem(), _problem(), rounds=4, time_limit=LIMIT)
    validate(found.schedule)


def _place() -> None:
    found = weft.place(parse_spec(_GRAPH), time_limit=LIMIT)
    _bounded(found.objective, found.bound)


def _place_graph() -> None:
    found = weft.place(parse_spec(_GRAPH), stage_graph=True, time_limit=LIMIT)
    _bounded(found.objective, found.bound)


def _place_step() -> None:
    found = weft.place_step(parse_spec(_GRAPH), micro_batch_sizes=[1, 2], time_limit=LIMIT)
    assert not violations(found.schedule)
    _bounded(found.makespan, found.bound)


def _plans() -> None:
    found = plans.solve(TransformPlan(mlp()), _MACHINE, time_limit=LIMIT)
    assert not violations(found.schedule) and not breaches(found.plan.planned, found.times)
    _bounded(found.makespan, found.bound)
    assert found.considered >= 1 and ("all" in str(found) or not found.complete or found.considered == 1)


def _program() -> CommunicationProgram:
    step = comm.Builder("layer", ranks=2)
    x, w = step.input("x", (512, 1024), "sliced", axis=1), step.parameter("w", (1024, 1024), "sliced", axis=0)
    bias, residual = step.parameter("bias", (1024,)), step.input("residual", (512, 1024))
    total = step.all_reduce("total", step.matmul("xw", x, w))
    return step.build(step.pointwise("out", "add", step.pointwise("biased", "add", total, bias), residual))


def _tune() -> None:
    found = comm.tune(_program(), _PRICES, time_limit=LIMIT)
    assert not violations(found.schedule) and not violations_of_choice(found.schedule, found.choices.problem)
    _bounded(found.microseconds, found.bound)
    assert found.choices.complete or "(there are more)" in str(found)


def _explain() -> None:
    found = weft.explain(_problem(), micro_batches=4, what_if=True, time_limit=LIMIT)
    assert found.schedule is not None and found.text
    validate(found.schedule)


CALLS: Mapping[str, Callable[[], None]] = {
    "solve": _solve, "compare": _compare, "latency": _latency, "sweep": _sweep, "share": _share, "place": _place,
    "place --stage-graph": _place_graph, "place_step": _place_step, "plans.solve": _plans, "tune": _tune,
    "explain": _explain}


@pytest.mark.parametrize("most", [1, 10, slow(100), 1000], ids=["1 look", "10 looks", "100 looks", "1000 looks"])
@pytest.mark.parametrize("call", CALLS)
def test_with_little_time_left_there_is_a_valid_answer_or_none_is_said_to_be_found_in_time(
        call: str, most: int) -> None:
    with _time_that_goes_on(most):
        try:
            CALLS[call]()
        except NoneFound as refusal:
            assert re.search("give (it )?more time", str(refusal)), refusal


def test_late_plans_and_programs_are_not_listed_further() -> None:
    with _time_that_goes_on(1):
        plan = plans.solve(TransformPlan(mlp()), _MACHINE, time_limit=LIMIT)
        tuned = comm.tune(_program(), _PRICES, time_limit=LIMIT)
    assert (plan.considered, plan.complete) == (1, False)
    assert (tuned.choices.tried, tuned.choices.complete) == (1, False)
    assert comm.tune(_program(), _PRICES, effort=0.1).choices.tried > 1


def test_memory_that_the_plans_made_in_time_lack_is_no_proof_of_the_others() -> None:
    tight = replace(_MACHINE, memory=1)
    with _time_that_goes_on(1), pytest.raises(NoneFound, match="there are more; give more time"):
        plans.solve(TransformPlan(mlp()), tight, time_limit=LIMIT)
    with pytest.raises(plans.PlanError):
        plans.solve(TransformPlan(mlp()), tight, effort=0.1, time_limit=600.0)
    with _time_that_goes_on(1), pytest.raises(CommunicationError, match="variants listed"):
        comm.tune(_program(), _PRICES, held=1, time_limit=LIMIT)


def test_a_step_whose_graphs_nobody_had_time_to_list_is_not_said_to_be_impossible(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def front(*_: Any, **__: Any) -> Any:
        raise OutOfTime

    monkeypatch.setattr("weft.solver.placement.joint.search.front", front)
    with pytest.raises(NoneFound, match="no proof that there is none; give more time"):
        weft.place_step(parse_spec(_GRAPH), time_limit=LIMIT)
