"""Makespan, span and rate of uniform pipelines at several memories, beside published schedules under the same measures.

    python -m experiments.step.objectives [--only V] [--effort 5]

Four devices, eight micro-batches; F, I and W of a device take 1 each (or 1, 1.1 and 0.8), with one stage a device or
two in a V. Memory is in activations of a stage; p stages a device, that is 2 p of a V's, are what 1F1B needs. The span
is how soon the next step can begin; published schedules are timed for it under their own orders, as zero-bubble's
post-validation allows. Each of weft's three searches has the same effort. Writes objectives.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib.provenance import RESULTS, Record
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.judge.validate import violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.step.goals import timed_for
from weft.solver.step.search import solve

DEVICES, MICRO_BATCHES = 4, 8
OBJECTIVES = ("makespan", "span", "rate")


@dataclass(frozen=True)
class Case:
    """A shape with the durations of F, I and W of a device, and memories in activations of a stage."""

    shape: str
    durations: tuple[float, float, float]
    memories: tuple[int, ...]

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.shape}, F, I, W = {', '.join(f'{duration:g}' for duration in self.durations)}"

    def problem(self, memory: int) -> Problem:
        """One micro-batch with room for so many activations."""
        down = list(range(DEVICES))
        devices = down if self.shape == "chain" else [*down, *reversed(down)]
        forward, inputs, weights = (duration * DEVICES / len(devices) for duration in self.durations)
        last = len(devices) - 1
        blocks = [Block(f"F{s}", BlockKind.FORWARD, (device,), forward, (1,), (),
                        (Dependency(f"F{s - 1}"),) if s else ()) for s, device in enumerate(devices)]
        for s in range(last, -1, -1):
            before = f"I{s + 1}" if s < last else f"F{s}"
            blocks += [Block(f"I{s}", BlockKind.INPUT_GRAD, (devices[s],), inputs, (0,), (), (Dependency(before),)),
                       Block(f"W{s}", BlockKind.WEIGHT_GRAD, (devices[s],), weights, (-1,), (),
                             (Dependency(f"I{s}"),))]
        return Problem(f"{self.name}, {memory}", tuple(Device(f"gpu{d}", memory) for d in down), tuple(blocks))


CASES = (Case("V", (1.0, 1.0, 1.0), (4, 5, 6, 8, 16)), Case("chain", (1.0, 1.0, 1.0), (4, 5, 6, 7, 8)),
         Case("V", (1.0, 1.1, 0.8), (4, 6, 8, 16)), Case("chain", (1.0, 1.1, 0.8), (4, 6, 8)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--memories", type=int, default=99, help="so many memories of each case at most")
    parser.add_argument("--effort", type=float, default=5.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "objectives.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = [_measure(case, memory, options.effort) for case in CASES if options.only in case.name
            for memory in case.memories[:options.memories]]
    _show(rows)
    smaller = sum(row["span"]["value"] < row["makespan"]["span"] * (1 - 1e-9) for row in rows)
    record.write({"effort": options.effort, "devices": DEVICES, "micro_batches": MICRO_BATCHES,
                  "summary": {"problems": len(rows), "span below that of the least makespan": smaller,
                              **{f"{objective} proven": sum(row[objective]["proven"] for row in rows)
                                 for objective in OBJECTIVES},
                              "published span below weft's": sum(row["best published span"] is not None
                                                                 and row["best published span"] < row["span"]["value"]
                                                                 * (1 - 1e-9) for row in rows)}, "rows": rows})
    return 0


def _measure(case: Case, memory: int, effort: float) -> dict[str, Any]:
    problem = case.problem(memory)
    row: dict[str, Any] = {"case": case.name, "memory": memory}
    for objective in OBJECTIVES:
        began = time.process_time()
        found = solve(problem, MICRO_BATCHES, objective=objective, effort=effort, time_limit=600.0)
        row[objective] = {"value": _rounded(found.value), "bound": _rounded(found.value_bound),
                          "proven": found.value_gap == 0, "makespan": _rounded(found.makespan),
                          "span": _rounded(timed_for(found, "span").value), "period": found.period,
                          "cpu_seconds": round(time.process_time() - began, 2)}
    published = {}
    for name in BASELINES:
        try:
            known = baseline(name, problem, MICRO_BATCHES)
        except NotApplicable:
            continue
        published[name] = {"makespan": _rounded(known.makespan), "span": _rounded(timed_for(known, "span").value),
                           "fits": not violations(known, limit=1)}
    fitting = [entry["span"] for entry in published.values() if entry["fits"]]
    return {**row, "published": published, "best published span": min(fitting, default=None)}


def _rounded(value: float) -> float:
    return round(value, 9)


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"{DEVICES} devices, {MICRO_BATCHES} micro-batches; * proven")
    for header in ("case", "memory", "least makespan", "its span", "least span", "its makespan", "rate",
                   "best published span"):
        table.add_column(header, justify="left" if header == "case" else "right")
    for row in rows:
        shown = {objective: f"{row[objective]['value']:g}{'*' * row[objective]['proven']}" for objective in OBJECTIVES}
        best = min((entry["span"], name) for name, entry in row["published"].items() if entry["fits"]) if row[
            "best published span"] is not None else None
        table.add_row(row["case"], str(row["memory"]), shown["makespan"], f"{row['makespan']['span']:g}", shown["span"],
                      f"{row['span']['makespan']:g}", shown["rate"],
                      "-" if best is None else f"{best[0]:g} ({best[1]})")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
