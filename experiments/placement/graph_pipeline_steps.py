"""What it is worth to search sizes of micro-batches and graphs of stages together with the order of a step.

    python -m experiments.placement.graph_pipeline_steps [--devices 8,16] [--models mmt,dlrm,uno] [--memory 1,0.5]

prints a table and keeps its rows in ``results/graph_pipeline_steps.json``. The models are those of
:mod:`experiments.placement.graph_pipelines` (GraphPipe's evaluation, modelled V100s, stages on one device each), with
all of the devices' memory and with half of it. Each row has four searches, all by
:mod:`weft.solver.placement.joint.search` with the same effort and every order searched:

* ``one_size_one_graph``: at each size of micro-batch the graph of least load, and of these the shallowest, as `weft
  place --stage-graph` has it, and all stages at one size; the best of all sizes.
* ``one_size``: all trade-offs of load and depth, graphs that allow a short step, and their neighbours.
* ``one_graph``: the graphs of least load of all sizes, each stage in micro-batches of its own size.
* ``own_sizes``: both.

``1f1b`` is 1F1B on the graphs of ``one_size_one_graph``, no order searched: GraphPipe's plan. ``bound`` is
proven over all graphs and choices that a search considered, ``any_bound`` over all graphs of stages at all sizes in any
order. Seconds are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from experiments.placement.graph_pipeline_cases import DEVICE, MODELS, Case
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.placement.joint.answer import PlacedStep
from weft.solver.placement.joint.search import place_step_within
from weft.solver.placement.joint.sized import SizedProblem

#: Wall seconds that end a search in any case; no run of the table comes near it.
SECONDS = 600.0


def sized_case(model: str, devices: int, memory: float) -> SizedProblem:
    """The model in micro-batches of all powers of two that divide its mini-batch, on so much of the devices' memory."""
    case = Case(model, devices, MODELS[model][3] * devices, replicate=False)

    def problem(size: int) -> Any:
        found = case.groups(size).problem
        whole = DEVICE.memory
        return dataclasses.replace(found, kinds=tuple(
            dataclasses.replace(kind, memory=None if kind.memory is None else kind.memory - (1 - memory) * whole)
            for kind in found.kinds))

    return SizedProblem(case.batch, {size: problem(size) for size in case.sizes()})


def searched(sized: SizedProblem, effort: float, *, one_size: bool, one_graph: bool) -> dict[str, Any] | None:
    """One search, or ``None`` where nothing fits."""
    began = time.process_time()
    try:
        found = place_step_within(sized, Budget(seconds=SECONDS, deterministic=effort), one_size=one_size,
                                  one_cut=one_graph)
    except Infeasible:
        return None
    return told(found, time.process_time() - began)


def told(found: PlacedStep, seconds: float) -> dict[str, Any]:
    return {"step_ms": found.makespan * 1e3, "bound_ms": found.bound * 1e3, "any_bound_ms": found.any_bound * 1e3,
            "1f1b_ms": None if found.at_one_size is None else found.at_one_size * 1e3, "sizes": list(found.sizes),
            "stages": len(found.sizes), "depth": found.cut.depth, "graphs": len(found.considered),
            "choices": found.solver["choices"], "whole": found.whole, "proven": found.status == "optimal",
            "cpu_s": round(seconds, 2)}


def compare(model: str, devices: int, memory: float, effort: float) -> dict[str, Any]:
    """A row of the table."""
    sized = sized_case(model, devices, memory)
    row: dict[str, Any] = {
        "model": model, "devices": devices, "memory": memory, "mini_batch": sized.mini_batch,
        "one_size_one_graph": searched(sized, effort, one_size=True, one_graph=True),
        "one_size": searched(sized, effort, one_size=True, one_graph=False),
        "one_graph": searched(sized, effort, one_size=False, one_graph=True),
        "own_sizes": searched(sized, effort, one_size=False, one_graph=False)}
    if all(row[name] for name in NAMES):
        steps = {name: row[name]["step_ms"] for name in NAMES}
        row.update(gain_of_sizes=steps["one_size"] / steps["own_sizes"] - 1,
                   gain_of_graphs=steps["one_graph"] / steps["own_sizes"] - 1,
                   gain_of_both=steps["one_size_one_graph"] / steps["own_sizes"] - 1,
                   gain_over_1f1b=(row["one_size_one_graph"]["1f1b_ms"] or math.nan) / steps["own_sizes"] - 1,
                   gap_to_any=steps["own_sizes"] / row["own_sizes"]["any_bound_ms"] - 1)
    return row


NAMES = ("one_size_one_graph", "one_size", "one_graph", "own_sizes")


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["model  devices memory | 1F1B ms | one size, one graph | one size | one graph | own sizes (sizes) | "
             "proven | gain of sizes, graphs, both, over 1F1B | gap to any graph"]
    for row in rows:
        cells = ["does not fit" if row[name] is None else f"{row[name]['step_ms']:9.2f}" for name in NAMES]
        head = f"{row['model']:6} {row['devices']:3} {row['memory']:4}"
        if "gain_of_sizes" not in row:
            lines.append(f"{head} | {' | '.join(cells)}")
            continue
        best = row["own_sizes"]
        sizes = ", ".join(f"{len(list(same))} x {size}" for size, same in itertools.groupby(sorted(best["sizes"])))
        plain = row["one_size_one_graph"]["1f1b_ms"] or math.nan
        lines.append(f"{head} | {plain:9.2f} | {' | '.join(cells)} ({sizes}) | "
                     f"{'yes' if best['proven'] else 'no'} | {row['gain_of_sizes']:.2%}, {row['gain_of_graphs']:.2%}, "
                     f"{row['gain_of_both']:.2%}, {row['gain_over_1f1b']:.2%} | {row['gap_to_any']:.1%}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="8,16")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--memory", default="1,0.5", help="shares of a device's memory")
    parser.add_argument("--effort", type=float, default=5.0, help="deterministic seconds of CP-SAT for each search")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "graph_pipeline_steps.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    found = {(row["model"], row["devices"], row["memory"]): row for row in record.kept().get("rows", [])}
    rows: list[dict[str, Any]] = []
    for devices, model, memory in itertools.product(map(int, options.devices.split(",")), options.models.split(","),
                                                    map(float, options.memory.split(","))):
        found[model, devices, memory] = compare(model, devices, memory, options.effort)
        print("\n".join(table([found[model, devices, memory]]).splitlines()[1:]), flush=True)
        rows = sorted(found.values(), key=lambda row: (list(MODELS).index(row["model"]), row["devices"],
                                                       -row["memory"]))
        record.write({"device": DEVICE.name, "effort": options.effort, "rows": rows}, part=True)
    whole = all(getattr(options, name) == parser.get_default(name) for name in ("devices", "models", "memory"))
    record.write({"device": DEVICE.name, "effort": options.effort, "rows": rows}, part=not whole)
    print(table(rows))
    return 0


if __name__ == "__main__":
    main()
