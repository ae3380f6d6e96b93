"""Periods at scale: random real-duration shapes on 8 to 128 devices, memory from the least that works to twice that.

    python -m experiments.period.scale [--devices 8,16,32] [--seeds 1] [--seconds 60] [--workers 2]
    python -m experiments.period.scale --tessel [--first N] [--effort 1]

Shapes are those of :mod:`experiments.lib.generated`; full and split backward; forward durations 80 to 120 at random,
backward twice that. Reports how many periods are proven (and within 10 seconds), the gap of the others, and the worst
case. Seconds are wall time, of everything from the problem on, with ``--workers`` cores to itself; no published
schedule is known to the search. Writes ``scale.json``.

``--tessel``: the Tessel evaluation's problems, each also solved for 128 micro-batches, whose makespan is held against
its bound. CPU seconds are those of the search for the period alone, on one core. Writes ``tessel_search.json``.
"""

from __future__ import annotations

import itertools
import random
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.lib.generated import SHAPES, Builder
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from tests.support.tessel_shapes import TESSEL_PROBLEMS, shape
from weft.solver.cpsat.budget import Budget
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.problem import Device, Problem
from weft.solver.step.search import solve
from weft.solver.ticks import TickProblem

CAPS = "1.0,1.25,1.5,2.0"


def problem(form: str, devices: int, split: bool, cap: float, seed: int) -> Problem:
    """One instance; ``cap`` in multiples of the least memory that works (one micro-batch at a time)."""
    draw = random.Random(seed)

    def cost(first: bool, last: bool, chunks: int) -> tuple[int, int, int]:
        forward = draw.randint(80, 120) // chunks
        return forward, 2 * forward, 2

    build = Builder(draw, devices, split, cost, gives_back=2, joined=60)
    build.fill(form)
    least = max(sum(max(block.memory_on(d), 0) for block in build.blocks) for d in range(devices))
    # One micro-batch at a time is no pipeline; the least cap worth the name holds two activations' worth of depth.
    memory = max(least, round(cap * least * max(2, devices / 4)))
    name = f"{form}{devices}{'-split' if split else ''} cap {cap:g} seed {seed}"
    gpus = tuple(Device(f"gpu{d}", memory) for d in range(devices))
    return Problem(name, gpus, tuple(build.blocks), (), "tick", "half")


def searched(case: Problem, budget: Budget) -> tuple[Bracket, float]:
    """The search of the period of one instance, and its CPU seconds."""
    began, instance = time.process_time(), TickProblem.of(case)
    return find_period(instance, one_at_a_time(instance), budget), time.process_time() - began


def measured(options: Namespace) -> Iterator[Row]:
    """All instances at scale."""
    for devices, form, split, cap, seed in itertools.product(
            map(int, options.devices.split(",")), options.shapes.split(","), (False, True),
            map(float, options.caps.split(",")), range(options.seeds)):
        case, began = problem(form, devices, split, cap, seed), time.perf_counter()
        search, cpu = searched(case, Budget(seconds=options.seconds, workers=options.workers))
        yield {"devices": devices, "shape": form, "split": split, "cap": cap, "name": case.name,
               "blocks": len(case.blocks), "period": float(search.best.period), "bound": float(search.refuted),
               "proven": search.proven, "gap": float(search.best.period / search.refuted) - 1,
               "cpu_seconds": round(cpu, 3), "wall_seconds": round(time.perf_counter() - began, 3)}


def summarised(rows: Sequence[Row]) -> dict[str, Any]:
    """By number of devices."""
    summary = {}
    for devices in sorted({row["devices"] for row in rows}):
        mine = [row for row in rows if row["devices"] == devices]
        summary[str(devices)] = {
            "instances": len(mine), "proven": sum(row["proven"] for row in mine),
            "proven_within_10_s": sum(row["proven"] and row["wall_seconds"] <= 10 for row in mine),
            "gap_under_1_percent": sum(row["gap"] < 0.01 for row in mine),
            "worst_gap": max((row["gap"], row["name"]) for row in mine)}
    return {"summary": summary}


def of_tessel(first: int | None, effort: float) -> Iterator[Row]:
    """The Tessel evaluation's problems."""
    problems = [shape(*entry) for entry in TESSEL_PROBLEMS[:first]]
    for case in problems:
        searched(case, Budget())  # loads what is loaded on first use
    for case in problems:
        (search, seconds), schedule = searched(case, Budget()), solve(case, 128, effort=effort)
        yield {"problem": case.name, "period": search.instance.time(search.best.period),
               "period_bound": search.instance.bound(search.refuted, 1), "proven": search.proven,
               "cpu_seconds": round(seconds, 4), "makespan": schedule.makespan,
               "makespan_bound": schedule.makespan_bound, "gap": round(schedule.gap, 5)}


@script(lambda asked: "tessel_search.json" if asked.tessel else "scale.json", devices="8,16,32",
        shapes=",".join(SHAPES), caps=CAPS, seeds=1, seconds=60.0, workers=2, tessel=False, first=int, effort=1.0)
def main(options: Namespace, record: Record) -> None:
    if options.tessel:
        record.rows(of_tessel(options.first, options.effort))
    else:
        record.rows(measured(options), summarised, seconds=options.seconds, workers=options.workers)
