"""Operator graphs placed to proof: published inputs, and generated ones of the size and shape of published ones.

    python -m experiments.placement.placement [--data FOLDER] [--only TEXT] [--ablation] [--output placement.json]

A row: operators, groups after exact reductions, the slicing dynamic program's value, objective and bound, CPU seconds
of the whole search, and everything on one accelerator (without its memory limit). ``--data`` is a folder with inputs of
msr-fiddle/dnn-partitioning (`dnn-partitioning/*.json`) and Piper (`piper/*.json`); rows for files that are not there
are left out. ``--ablation`` runs the exact encoding alone with and without parts of it, one after the other in one
process: its seconds are comparable with each other, and go to placement_ablation.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib.placement_graphs import GRAPHS
from experiments.lib.provenance import RESULTS, ROOT, Record
from weft.models.graph.formats import load_profiled_graph
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.chain.constructions.random_slicings import best_slicing
from weft.solver.placement.chain.place import place
from weft.solver.placement.encoding.least_load import Options, least_bottleneck
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.reductions.fold import fold

#: What the published dynamic program finds, to its printed digits (throughput, contiguous).
PUBLISHED = {"bert24_training": 41.7458, "bert24_inference": 17.7899, "gnmt_training": 107.004,
             "resnet50_inference": 33.7747, "bert_l-3_training": 65.3031, "bert_l-3_inference": 27.9186}

_ABLATED = {"all": Options(), "no cutoff": Options(cutoff=False, windows=False), "no windows": Options(windows=False),
            "no total row": Options(total=False), "none of them": Options(cutoff=False, windows=False, total=False)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Place, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds a row")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--limit", type=float, default=20.0, help="deterministic seconds of each encoding")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    usual = RESULTS / ("placement_ablation.json" if options.ablation else "placement.json")
    record = Record(options.output or usual)
    cases = {name: make for name, make in _cases(options.data).items() if options.only in name}
    rows: dict[str, Any] = record.kept().get("rows", {}) if options.only else {}
    for name, make in cases.items():
        rows[name] = _ablate(make(), options.limit) if options.ablation else _measure(name, make(), options.time_limit)
        print(name, json.dumps(rows[name]), flush=True)
        record.write({"rows": rows}, part=True)
    record.write({"rows": rows}, part=bool(options.only))
    Console(width=150).print(_ablation_table(rows) if options.ablation else _table(rows))
    return 0


def _cases(data: Path) -> dict[str, Callable[[], PlacementProblem]]:
    files = [*(data / "dnn-partitioning" / f"{name}.json" for name in PUBLISHED), data / "piper" / "bert32a100.json"]
    read = {file.stem: (lambda file=file: load_profiled_graph(file)) for file in files if file.exists()}
    return {**read, **GRAPHS}


def _measure(name: str, problem: PlacementProblem, time_limit: float) -> dict[str, Any]:
    found = place(problem, time_limit=time_limit)
    alone = [node.times[0] for node in problem.nodes]
    return {
        "operators": len(problem.nodes), "groups": found.solver["folded"],
        "devices": "+".join(str(kind.count) for kind in problem.kinds),
        "one_device": sum(time for time in alone if time is not None), "slicing": found.solver["slicing"],
        "objective": found.objective, "bound": found.bound, "gap": found.gap, "status": found.status,
        "published": PUBLISHED.get(name), "cpu_seconds": found.solver["cpu_seconds"],
        "coarsening": found.solver["coarsening"],
    }


def _ablate(problem: PlacementProblem, limit: float) -> dict[str, Any]:
    """CPU seconds of the exact encoding on the folded graph from one and the same start, limited to ``limit``
    deterministic seconds each."""
    groups = fold(groups_of(problem))
    start = best_slicing(groups, Budget(), orders=4)
    found: dict[str, Any] = {}
    for label, options in _ABLATED.items():
        began = time.process_time()
        solved = least_bottleneck(groups, Budget(), start, 0.0, options=options, deterministic=limit)
        found[label] = {"cpu_seconds": round(time.process_time() - began, 3), "proven": solved.proven,
                        "deterministic": round(solved.deterministic, 3)}
    return found


def _table(rows: dict[str, Any]) -> Table:
    table = Table(title="Operator graphs placed: largest load of a stage")
    for header in ("graph", "operators", "groups", "devices", "one device", "slicing", "objective", "bound", "gap",
                   "published", "CPU s"):
        table.add_column(header, justify="left" if header == "graph" else "right")
    for name, row in rows.items():
        table.add_row(name, str(row["operators"]), str(row["groups"]), row["devices"], f"{row['one_device']:.6g}",
                      "-" if row["slicing"] is None else f"{row['slicing']:.6g}", f"{row['objective']:.6g}",
                      f"{row['bound']:.6g}", "proven" if row["status"] == "optimal" else f"{row['gap']:.2%}",
                      "" if row["published"] is None else f"{row['published']:g}", f"{row['cpu_seconds']:.2f}")
    return table


def _ablation_table(rows: dict[str, Any]) -> Table:
    table = Table(title="CPU seconds of the exact encoding, as multiples of those with all its parts (*: not proven)")
    for header in ("graph", "CPU s", *list(_ABLATED)[1:]):
        table.add_column(header, justify="left" if header == "graph" else "right")
    for name, row in rows.items():
        base = row["all"]["cpu_seconds"]
        table.add_row(name, f"{base:.2f}" + ("" if row["all"]["proven"] else "*"), *(
            f"{row[label]['cpu_seconds'] / base:.1f}x" + ("" if row[label]["proven"] else "*")
            for label in list(_ABLATED)[1:]))
    return table


if __name__ == "__main__":
    main()
