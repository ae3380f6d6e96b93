"""How much of each makespan is proven, and by which argument: a sample of the generated suite.

    python -m experiments.step.bounds [--every 10] [--windows 0.3] [--output bounds.json]

Takes every so many-th problem of never_worse/suite.json with the makespan found there, and holds three lower bounds
against it: *basic* (a device's work between the head and tail of one micro-batch, the longest chain over
all micro-batches, Little's law for each device's memory), *static* (``weft.solver.bounds.makespan_bound``: memory as
precedence, every operation's head and tail, blocks on all devices cut out), and *windows* (a few neighbouring
micro-batches searched exactly, where static leaves a gap). A gap is makespan / bound - 1. Writes the table by shape and
cap, with CPU seconds, as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib.generated import CAPS, SHAPES, problem, suite
from experiments.lib.provenance import RESULTS, Record
from weft.solver.bounds import makespan_bound
from weft.solver.bounds.heads import heads
from weft.solver.bounds.memory import area_of_one, chains_of_one
from weft.solver.bounds.windows import rolling_bounds
from weft.solver.cpsat.budget import Budget
from weft.solver.relations.graph import graph_of
from weft.solver.relations.implied_order import NEVER, implied_order
from weft.solver.ticks import TickProblem

KINDS = ("basic", "static", "windows")
SUITE = RESULTS / "never_worse" / "suite.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", default=10, type=int, help="take every so many-th problem of the suite")
    parser.add_argument("--windows", default=0.3, type=float, help="deterministic seconds of windows a problem")
    parser.add_argument("--output", default=RESULTS / "bounds.json", type=Path)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    recorded = {row["name"]: row["weft"] for row in json.loads(SUITE.read_text())["rows"]}
    rows = []
    for drawn in suite(540, 0)[::options.every]:
        case, micro_batches = problem(drawn)
        row = _measure(TickProblem.of(case), micro_batches, recorded[case.name], options.windows)
        rows.append({"name": case.name, **drawn.family, **row})
        if any(gap < -1e-9 for gap in row["gaps"].values()):
            raise AssertionError(f"{case.name}: a bound is above the makespan of a valid schedule")
    caps = ["unlimited" if cap is None else f"{cap:g}" for cap in CAPS]
    groups = {(shape, cap): [row for row in rows if row["shape"] == shape and row["cap"] == cap]
              for shape in SHAPES for cap in caps}
    summary = {"all": _summary(rows), **{f"{shape}, cap {cap}": _summary(chosen)
                                         for (shape, cap), chosen in groups.items() if chosen}}
    _show(summary)
    worst = max(rows, key=lambda row: row["gaps"]["windows"])
    print(f"widest gap left: {worst['gaps']['windows']:.2%}, {worst['name']}")
    record.write({"every": options.every, "windows": options.windows, "summary": summary, "rows": rows})
    return 0


def _measure(instance: TickProblem, micro_batches: int, makespan: float, deterministic: float) -> dict[str, Any]:
    bounds, seconds = {"basic": _basic(instance, micro_batches)}, {}
    began = time.process_time()
    bounds["static"] = max(makespan_bound(instance, micro_batches), bounds["basic"])
    seconds["static"] = round(time.process_time() - began, 4)
    began = time.process_time()
    bounds["windows"] = bounds["static"]
    if instance.bound(bounds["static"], micro_batches) < makespan * (1 - 1e-9):
        bounds["windows"] = max([bounds["static"], *map(Fraction, rolling_bounds(instance, micro_batches, Budget(),
                                                                                deterministic))])
    seconds["windows"] = round(time.process_time() - began, 4)
    return {"makespan": makespan, "gaps": {kind: round(makespan / instance.bound(bounds[kind], micro_batches) - 1, 9)
                                           for kind in KINDS}, "cpu_seconds": seconds}


def _basic(instance: TickProblem, micro_batches: int) -> Fraction:
    """Without memory as precedence, and with the heads and tails of one micro-batch for all of them."""
    lags = chains_of_one(instance)
    head = [max(0, int(lags[:, i].max())) for i in instance.blocks]
    tail = [max(0, int((lags[i] + instance.durations).max()) - instance.durations[i]) for i in instance.blocks]
    graph = graph_of(instance)
    order = implied_order(instance, graph, 1)  # of a single micro-batch memory says nothing
    order[order > 1] = NEVER
    alone = heads(graph, order, micro_batches, 0)
    bounds = [Fraction(max(int(alone[i, -1]) + instance.durations[i] + tail[i] for i in instance.blocks))]
    for device, on in enumerate(instance.blocks_on):
        for e in {head[i] for i in on}:
            for t in {tail[i] for i in on}:
                work = sum(instance.durations[i] for i in on if head[i] >= e and tail[i] >= t)
                bounds.append(Fraction(e + micro_batches * work + t if work else 0))
        area, capacity = area_of_one(instance, device, lags), instance.capacity[device]
        if area is not None and capacity:
            takers = [i for i, amount in instance.take[device].items() if amount]
            bounds.append(min(head[i] for i in takers) + Fraction(micro_batches * area, capacity)
                          + min(tail[i] for i in on))
    return max([*bounds, *(Fraction(micro_batches * instance.link_load(link))
                           for link in range(len(instance.problem.links)) if not _reaches_on(instance, link))])


def _reaches_on(instance: TickProblem, link: int) -> bool:
    return any(arc.link == link and arc.distance for arc in instance.arcs)


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    gaps = {kind: [row["gaps"][kind] for row in rows] for kind in KINDS}
    return {"problems": len(rows),
            **{kind: {"proven": sum(gap <= 1e-9 for gap in gaps[kind]),
                      "median": round(statistics.median(gaps[kind]), 5), "mean": round(statistics.fmean(gaps[kind]), 5),
                      "largest": round(max(gaps[kind]), 5)}
               for kind in KINDS},
            "cpu_seconds": {kind: {"mean": round(statistics.fmean(row["cpu_seconds"][kind] for row in rows), 4),
                                   "most": max(row["cpu_seconds"][kind] for row in rows)} for kind in KINDS[1:]}}


def _show(summary: dict[str, Any]) -> None:
    table = Table(title="gap = makespan / bound - 1: mean, largest; and how many are proven optimal")
    shown = [(kind, what) for kind in KINDS for what in ("mean", "largest", "proven")]
    for header in ("family", "problems", *(f"{kind}: {what}" for kind, what in shown)):
        table.add_column(header, justify="left" if header == "family" else "right")
    for name, counts in summary.items():
        cells = [f"{counts[kind][what]:.2%}" if what != "proven" else str(counts[kind][what])
                 for kind, what in shown]
        table.add_row(name, str(counts["problems"]), *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
