"""Golden runs of plans of one's own and of programs with communication: what is derived, what it costs, what each rank
runs, what a search decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from experiments.lib.published_plans import PLANS
from tests.support.communication import pipelined, tensor_parallel
from tests.support.communication_programs import sliced_optimizer
from tests.support.golden.said import UNLIMITED, Run, digest, fields, starts
from tests.support.programs import attention, convolutions, experts, layouts_over, mlp, random_plan, transformer
from weft.app.communication.lowering import lower as lower_communication
from weft.app.lib.options import SearchOptions
from weft.app.plans.lowering import lower
from weft.app.plans.solving import PlanMachine, as_written, solve_plan
from weft.communication import Prices, schedules, tune
from weft.models.communication.program import CommunicationProgram as CommunicationProgram
from weft.models.transform.plan import Preserved, TransformPlan
from weft.models.transform.program import PlanProgram
from weft.plans import Placed, convert, uniform

_MODELS: tuple[Callable[[], PlanProgram], ...] = (mlp, transformer, attention, convolutions, experts)
#: Whole seconds of operators, so that all of it is exact; and a published device.
_COSTS = PlanMachine({"up": 3.0, "down": 2.0, "d(act)*": 2.0, "d(w1)*": 2.0, "d(*": 1.0, "*": 1.0}, uniform(0.5, 1e12))
_A100 = PlanMachine("a100", uniform(2e-5, 1e10))
_PRICES = Prices(bandwidth=1e9, memory=1e11, flops=1e10, launch=1e-7, kernel=1e-8)
_PROGRAMS: dict[str, Callable[[], CommunicationProgram]] = {
    "tensor parallel layer": tensor_parallel, "pipelined all-reduce": pipelined,
    "sliced Adam": partial(sliced_optimizer, "adam", 4, (32, 3))}


def runs() -> Iterator[tuple[str, Run]]:
    """By name."""
    for name in PLANS:
        yield f"plan {name}", partial(_published, name)
    for model in _MODELS:
        yield f"random plans of {model.__name__}", partial(_random, model)
    yield "plan of tensor parallel transformer", _tensor_parallel
    yield "solved plan of a pipeline", partial(_solved, "pipeline")
    yield "solved plan without devices", partial(_solved, "devices")
    yield "layouts converted", _layouts
    for name in _PROGRAMS:
        yield f"communication of {name}", partial(_communication, name)
    for name in ("tensor parallel layer", "pipelined all-reduce"):
        yield f"communication of {name}, tuned", partial(_tuned, name)


def _derived(done: Preserved, ranks: int = 4) -> dict[str, Any]:
    """What is communicated, and what each rank runs."""
    return {"seconds": done.seconds, "bytes": done.bytes, "communications": digest(list(map(str, done.communications))),
            "order": digest(list(map(str, done.order))), "ranks": [digest(fields(one)) for one in lower(done, ranks)]}


def _published(name: str) -> dict[str, Any]:
    plan = PLANS[name].plan("1f1b") if PLANS[name].pipeline else PLANS[name].plan()
    return {**_derived(plan.preserve()), "as_written": as_written(plan, _A100)}


def _random(model: Callable[[], PlanProgram]) -> dict[str, Any]:
    draw = random.Random(model.__name__)
    return {str(number): _derived(random_plan(model(), draw).preserve()) for number in range(3)}


def _tensor_parallel() -> dict[str, Any]:
    plan = TransformPlan(transformer(layers=2)).tensor_parallel(range(4))
    cuts = [(name, [cut.along for cut in plan.planned.cuts_of(name)]) for name in plan.program.by_name]
    return {**_derived(plan.preserve()), "cuts": digest(cuts)}


def _solved(what: str) -> dict[str, Any]:
    plan, machine = TransformPlan(mlp()), _COSTS
    if what == "pipeline":
        plan = plan.pipeline(["up bias act", "down residual loss"], [0, 1], "b", 4, schedule="open")
    else:
        machine = PlanMachine(_COSTS.costs, _COSTS.prices, devices=2)
    found = solve_plan(plan, machine, SearchOptions(UNLIMITED, 0.3, seed=1))
    return {"makespan": found.makespan, "bound": found.bound, "written": found.written, "options": dict(found.options),
            "considered": found.considered, "operations": starts(found.schedule), **_derived(found.done, 2)}


def _layouts() -> dict[str, Any]:
    layouts = list(layouts_over(4, 2))
    found = [[conversion.seconds, [step.kind for step in conversion.steps]]
             for source in layouts[::3] for target in layouts[::4]
             for conversion in [convert(Placed.of(source, range(4)), target, (16, 16), 4, uniform(1e-5, 1e10))]]
    return {"ways": len(found), "seconds": sum(one[0] for one in found), "steps": digest(found)}


def _communication(name: str) -> dict[str, Any]:
    program = _PROGRAMS[name]()
    reached = schedules(program, 64)
    ranks = program.ranks * program.groups
    return {"programs": [one.name for one in reached.schedules][:40], "complete": reached.complete,
            "text": digest([str(one.program) for one in reached.schedules]),
            "ranks": [digest([fields(lower_communication(one.program, rank)) for one in reached.schedules])
                      for rank in range(ranks)]}


def _tuned(name: str) -> dict[str, Any]:
    found = tune(_PROGRAMS[name](), _PRICES, (1, 2, 4), time_limit=UNLIMITED, effort=0.5, seed=2)
    return {"microseconds": found.microseconds, "bound": found.bound, "passes": list(found.passes),
            "chunks": found.chunks, "operations": starts(found.schedule)}
