"""Does a plain annealer, written apart from weft, find better schedules than weft's answers?

    python -m experiments.step.annealer [--every 9] [--weft 16] [--seconds 4] [--output annealer.json]

Problems: every so many-th of :mod:`experiments.lib.generated`. Weft searches each for so many CPU seconds; an answer
that is not proven is annealed for so many more (``annealer.cpp`` beside this file: one sequence of all operations,
moves of one operation, everything timed anew; a C++ compiler is needed). A better order counts where the judge passes
it. Writes annealer.json.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.generated import problem, suite
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import validate
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, Search
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders

SOURCE = Path(__file__).with_suffix(".cpp")


def built(folder: Path) -> ctypes.CDLL:
    """The annealer, compiled. Raises ``SystemExit`` where there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise SystemExit("annealer.cpp needs a C++ compiler: install g++ or clang++")
    library = folder / "annealer.so"
    subprocess.run([compiler, "-O2", "-std=c++17", "-fPIC", "-shared", "-o", str(library), str(SOURCE)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.anneal.restype = ctypes.c_int64
    return loaded


def annealed(library: ctypes.CDLL, answer: Schedule, seconds: float, seed: int) -> tuple[Schedule, int]:
    """The best schedule from ``answer`` on, passed by the judge, and the number of moves tried."""
    case, count = TickProblem.of(answer.problem), answer.micro_batches
    longs: Any = np.int64
    arcs = np.array([(arc.source, arc.target, arc.distance, -1 if arc.link is None else arc.link, arc.lag)
                     for arc in case.arcs], longs)
    uses = np.array([(i, d, case.take[d][i], case.change[d][i]) for d in range(len(case.take)) for i in case.take[d]],
                    longs)
    on = np.array([(i, d) for i, block in enumerate(case.problem.blocks) for d in block.devices], longs)
    durations = np.array(case.durations, longs)
    capacity = np.array([-1 if room is None else room for room in case.capacity], longs)
    behind = sorted(answer.operations, key=lambda operation: (operation.start, operation.end))
    sequence = np.array([operation.block * count + operation.micro_batch for operation in behind], np.int32)
    tried = ctypes.c_int64()

    def at(array: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    found = library.anneal(
        len(case.durations), count, len(case.capacity), len(case.problem.links), at(durations), len(arcs), at(arcs),
        len(uses), at(uses), len(on), at(on), at(capacity), ctypes.c_double(seconds), ctypes.c_uint64(seed),
        at(sequence), ctypes.byref(tried))
    if found < 0:
        raise ValueError(f"{case.problem.name}: the annealer does not take weft's order")
    orders: list[list[tuple[int, int]]] = [[] for _ in case.problem.devices]
    for operation in sequence.tolist():
        block, micro_batch = divmod(operation, count)
        for device in case.problem.blocks[block].devices:
            orders[device].append((block, micro_batch))
    schedule = Schedule(case.problem, count, time_orders(case.problem, count, orders), 0.0, solver={"name": "annealer"})
    validate(schedule)
    return schedule, tried.value


def searched(case: Problem, micro_batches: int, budget: Budget) -> Schedule:
    """Weft's answer within ``budget``."""
    search = Search(case, micro_batches, budget)
    with budget.limited():
        for _ in search.steps():
            if budget.spent:
                break
    return search.result()


def compared(options: Namespace) -> Iterator[Row]:
    """Weft's answers, and those that are not proven annealed."""
    with tempfile.TemporaryDirectory() as folder:
        library = built(Path(folder))
        for drawn in suite(540, options.seed)[::options.every]:
            case, count = problem(drawn)
            try:
                answer = searched(case, count, Budget(seconds=options.weft, now=time.process_time))
            except Infeasible:
                continue
            row: Row = {"name": case.name, **drawn.family, "weft": answer.makespan, "bound": answer.makespan_bound,
                        "annealer": answer.makespan, "moves": 0}
            if answer.gap > 0:
                found, row["moves"] = annealed(library, answer, options.seconds, options.seed)
                row["annealer"] = min(found.makespan, answer.makespan)
            yield row


def summary(rows: Sequence[Row]) -> Row:
    """How many schedules are found to be longer than need be, and by how much."""
    gains = [1 - row["annealer"] / row["weft"] for row in rows]
    return {"summary": {"problems": len(rows), "open": sum(row["moves"] > 0 for row in rows),
                        "shorter": sum(gain > 1e-9 for gain in gains), "most": round(max(gains, default=0.0), 5)}}


@script("annealer.json", every=9, weft=16.0, seconds=4.0, seed=0)
def main(options: Namespace, record: Record) -> None:
    record.rows(compared(options), summary, weft=options.weft, seconds=options.seconds)
