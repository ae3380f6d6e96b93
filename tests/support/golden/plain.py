"""Golden runs of plain problems: whole steps, steady states, latencies at a throughput."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import weft
from experiments.lib import generated
from experiments.period import scale
from tests.support.builders import loop, pipeline, v
from tests.support.golden.said import UNLIMITED, Run, digest, or_refused, said, starts
from weft.solver import Budget, solve
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.ticks import TickProblem


def runs() -> Iterator[tuple[str, Run]]:
    """By name."""
    for number in range(72):
        yield f"generated {number}", partial(or_refused, partial(_solved, number))
    for name, devices in (("chain", [0, 1, 2, 3]), ("V", v(4)), ("loop", loop(4))):
        for split in (False, True):
            for memory in (4, 8):
                yield (f"uniform {name}, {'split' if split else 'whole'}, cap {memory}",
                       partial(_uniform, devices, split, memory, 6))
    for shape in generated.SHAPES:
        for split in (False, True):
            yield f"period {shape}, {'split' if split else 'whole'}", partial(_period, shape, 8, split, 1.25)
    yield "period V2 on 32", partial(_period, "V2", 32, False, 2.0)
    for number in (0, 3, 5, 8):
        yield f"latency {number}", partial(_latency, number, Fraction(5, 4))
    for objective in ("span", "rate"):
        yield f"uniform V for the {objective}", partial(_objective, objective)


def _solved(number: int) -> dict[str, Any]:
    problem, micro_batches = generated.problem(generated.suite(540, 1)[number])
    return said(solve(problem, micro_batches, time_limit=UNLIMITED, effort=0.3, seed=number))


def _uniform(devices: list[int], split: bool, memory: int, micro_batches: int) -> dict[str, Any]:
    problem = pipeline(devices, backward=None if split else 2, split=(1, 1) if split else None, memory=memory)
    return said(solve(problem, micro_batches, time_limit=UNLIMITED, effort=0.5, seed=1))


def _period(shape: str, devices: int, split: bool, cap: float) -> dict[str, Any]:
    instance = TickProblem.of(scale.problem(shape, devices, split, cap, 0))
    found = find_period(instance, one_at_a_time(instance), Budget(seconds=UNLIMITED, deterministic=1.0))
    return {"period": str(found.best.period), "bound": str(found.refuted), "starts": digest(found.best.starts)}


def _latency(number: int, slower: Fraction) -> dict[str, Any]:
    problem, _ = generated.problem(generated.suite(540, 1)[number])
    instance = TickProblem.of(problem)
    found = find_period(instance, one_at_a_time(instance), Budget(seconds=UNLIMITED, deterministic=0.3))
    floor = found.best.period * instance.tick * slower
    serving = weft.latency(problem, period=float(floor), micro_batches=6, time_limit=UNLIMITED, effort=1.0, seed=2)
    return {"points": [[point.period, point.latency, point.bound, starts(point.schedule)] for point in serving.points]}


def _objective(objective: str) -> dict[str, Any]:
    problem = pipeline(v(3), split=(2, 1), forward=2, lag=0.5, memory=5)
    found = solve(problem, 5, objective=objective, time_limit=UNLIMITED, effort=0.3, seed=6)
    return {"value": found.value, "value_bound": found.value_bound, **said(found)}
