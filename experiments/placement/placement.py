"""Operator graphs placed to proof: published inputs, and generated ones of the size and shape of published ones.

    python -m experiments.placement.placement [--data FOLDER] [--only TEXT] [--output placement.json]

A row: operators, groups after exact reductions, the slicing dynamic program's value, objective and bound, and CPU
seconds of the whole search. ``--data`` is a folder with inputs of
msr-fiddle/dnn-partitioning (`dnn-partitioning/*.json`) and Piper (`piper/*.json`); rows for files that are not there
are left out.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from experiments.lib.placement_graphs import GRAPHS
from experiments.lib.provenance import ROOT, Record, Row
from experiments.lib.script import script
from weft.models.graph.formats import load_profiled_graph
from weft.solver.placement.chain.place import place
from weft.solver.placement.problem import PlacementProblem

#: What the published dynamic program finds, to its printed digits (throughput, contiguous).
PUBLISHED = {"bert24_training": 41.7458, "bert24_inference": 17.7899, "gnmt_training": 107.004,
             "resnet50_inference": 33.7747, "bert_l-3_training": 65.3031, "bert_l-3_inference": 27.9186}


def _cases(data: Path) -> dict[str, Callable[[], PlacementProblem]]:
    files = [*(data / "dnn-partitioning" / f"{name}.json" for name in PUBLISHED), data / "piper" / "bert32a100.json"]
    read = {file.stem: (lambda file=file: load_profiled_graph(file)) for file in files if file.exists()}
    return {**read, **GRAPHS}


def _measure(name: str, problem: PlacementProblem, time_limit: float) -> Row:
    found = place(problem, time_limit=time_limit)
    return {"operators": len(problem.nodes), "groups": found.solver["folded"],
        "devices": "+".join(str(kind.count) for kind in problem.kinds),
        "slicing": found.solver["slicing"], "objective": found.objective, "bound": found.bound, "gap": found.gap,
        "status": found.status, "published": PUBLISHED.get(name), "cpu_seconds": found.solver["cpu_seconds"]}


@script("placement.json", data=ROOT.parent / "shared" / "data", only="", time_limit=120.0)
def main(options: Namespace, record: Record) -> None:
    rows = {}
    for name, make in _cases(options.data).items():
        if options.only in name:
            rows[name] = _measure(name, make(), options.time_limit)
            print(name, json.dumps(rows[name]), flush=True)
            record.write({"rows": rows})
