"""Orders of random problems for the kernels of :mod:`weft.solver.orders`, and what a kernel decides about them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from experiments.lib import generated
from tests.oracles.generated import drawn
from tests.oracles.lanes import drawn_with_lanes
from tests.support.builders import any_order
from tests.support.lane_problems import laned_pipeline
from weft.solver import Dependency, Link, NotApplicable, Problem
from weft.solver.control.compiled import why_not
from weft.solver.orders.native import NativeKernel
from weft.solver.orders.tables import Integers, Tables
from weft.solver.orders.timed_rows import NEVER
from weft.solver.orders.twin import TwinKernel
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

Kernel: TypeAlias = NativeKernel | TwinKernel
#: The kernels that this installation has.
KERNELS: tuple[type[Kernel], ...] = (TwinKernel,) if why_not() else (TwinKernel, NativeKernel)
#: Marks a test of the compiled kernel.
compiled = pytest.mark.skipif(why_not() is not None, reason=f"there is no compiled kernel: {why_not()}")
#: Pipelines; small problems of all kinds; lanes that take and give, without links and with them; transfers and copies
#: on lanes.
KINDS = ("pipeline", "small", "lanes", "lanes and links", "laned pipeline")


@dataclass(frozen=True)
class Case:
    """A problem in arrays, with some orders that its dependencies allow, whether memory holds them or not."""

    problem: Problem
    micro_batches: int
    tables: Tables
    flat: Integers


def case(kind: str, number: int) -> Case:
    """Case ``number`` of its kind."""
    problem, micro_batches = _problem(kind, number)
    tables = Tables(TickProblem.of(problem), micro_batches)
    orders = any_order(problem, micro_batches, random.Random(number), in_turn=True).orders
    return Case(problem, micro_batches, tables, tables.flat(orders))


def cyclic(objective: str, kind: str, number: int) -> Case | None:
    """Case ``number`` of its kind, for a span or, from one micro-batch at a time, for a period; None where lanes share
    a memory that hangs on times, or there is no steady state."""
    some = case(kind, number)
    instance, count = some.tables.instance, some.micro_batches
    if instance.mixed_pools:
        return None
    orders: Orders = some.tables.orders(some.flat)
    if objective == "period":
        if not (instance.balanced and takes_before_giving(instance)):
            return None
        try:
            count, orders = 1, one_at_a_time(instance).rings
        except NotApplicable:
            return None
    tables = Tables(instance, count, objective)
    return Case(some.problem, count, tables, tables.flat(orders))


def _problem(kind: str, number: int) -> tuple[Problem, int]:
    match kind:
        case "pipeline":
            [instance] = generated.suite(1, number)
            problem, micro_batches = generated.problem(instance)
            return problem, min(micro_batches, 6)
        case "small":
            some = drawn(number, most_operations=24)
            return some.problem, some.micro_batches
        case "lanes" | "lanes and links":
            lanes = drawn_with_lanes(number, balanced=number % 2 > 0)
            return _linked(lanes) if kind == "lanes and links" else lanes, 2 + number % 5
    return laned_pipeline(1 + number % 3, 1 + number % 4, copy=number % 2 * 5), 2 + number % 5


def _linked(problem: Problem) -> Problem:
    """With a link from every device to every other: what passes takes a tick more there, one after the other."""
    links = {(a, b): Link(f"{a} to {b}", a, b) for a in range(len(problem.devices))
             for b in range(len(problem.devices)) if a != b}

    def over(wait: Dependency, target: int) -> Dependency:
        [source] = problem.blocks[problem.index[wait.block]].devices
        return wait if source == target else replace(wait, lag=wait.lag + 1, link=links[source, target].name)

    return replace(problem, links=tuple(links.values()), blocks=tuple(
        replace(block, after=tuple(over(wait, block.devices[0]) for wait in block.after)) for block in problem.blocks))


def shuffled(given: Case, number: int) -> Integers:
    """Its orders with two of a row exchanged, which may make them wait in a circle."""
    dice, flat = random.Random(number), given.flat.copy()
    begin = given.tables.row_begin * given.micro_batches
    row = dice.choice([r for r in range(len(begin) - 1) if begin[r] < begin[r + 1]])
    i, j = (dice.randrange(begin[row], begin[row + 1]) for _ in range(2))
    flat[[i, j]] = flat[[j, i]]
    return flat


def decisions(kernel: Kernel, given: Case, seed: int, evaluations: int) -> list[object]:
    """All that can be seen of it: after every move, and after many from here, from the best and from other orders."""
    mean = float(given.tables.duration.mean())
    seen: list[object] = []

    def see(what: object) -> None:
        seen.append((what, kernel.makespan, kernel.overflow, kernel.best, kernel.best_rows.tolist(),
                     kernel.starts.tolist() if kernel.makespan < NEVER else None))

    see(kernel.set(given.flat))
    for move in range(evaluations // 2):
        see(kernel.anneal(1, mean, mean, mean, seed + move))
    for again in range(3):
        see(kernel.anneal(evaluations // 2, mean * (again + 0.5), mean / 30, mean * again, seed - again))
        kernel.back_to_best()
        see(None)
        see(kernel.set(shuffled(given, seed + again)))
        see(kernel.anneal(evaluations // 2, mean, mean / 30, 10 * mean, seed - again))
    return seen


def tight(given: Case) -> Case:
    """The same orders with half of the memory, so that few of them fit."""
    devices = [device if device.memory is None else replace(device, memory=device.memory / 2)
               for device in given.problem.devices]
    problem = replace(given.problem, devices=tuple(devices))
    tables = Tables(TickProblem.of(problem), given.micro_batches, given.tables.objective)
    return Case(problem, given.micro_batches, tables, given.flat)
