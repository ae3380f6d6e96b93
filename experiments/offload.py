"""What offloading beside the computation buys in whole schedules: GPT-1.3B on four V100s of 32 GB, measured costs.

    python -m experiments.offload [--output experiments/offload.json] [--time-limit 20]

At each size of micro-batch four ways to spend memory are searched, each over its placements: whole layers, everything
kept; whole layers, every layer recomputed; operators kept or recomputed as decided; the same with copies to the host at
12 GB/s each way. A step is 16 micro-batches; given are its time, a bound on it over the placements of that way, and
samples a second. Where the last way is the best, its lead over the best of the others is what offloading buys.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import weft
from models.spec import Spec, parse_spec
from solver.entries import write_atomically
from solver.search import Infeasible

SIZES = (1, 2, 4, 8)
MICRO_BATCHES = 16
SPEC = """
name: GPT-1.3B on 4 V100
model: {{family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}}
costs: gpt-1.3b-v100
cluster: {{gpus: 4, memory: 32 GiB, links: nvlink-v100{host}}}
training: {{micro_batches: {count}, micro_batch_size: {size}{recompute}}}
placement: {{shapes: [chain], backward: [full]{memory}}}
"""
#: What each way adds to the spec.
WAYS = {
    "kept": {},
    "layers recomputed": {"recompute": ", recompute: true"},
    "decided": {"memory": ", memory: decide"},
    "decided, with offload": {"memory": ", memory: decide", "host": ", host_bandwidth: 12 GB/s"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("experiments/offload.json"))
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each search, plans apart")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        rows[str(size)] = {way: _searched(_spec(size, way), size, options.time_limit) for way in WAYS}
        write_atomically(options.output, json.dumps({"micro_batches": MICRO_BATCHES, "sizes": rows}, indent=1) + "\n")
    Console(width=140).print(_table(rows))


def _spec(size: int, way: str) -> Spec:
    blank = {"host": "", "recompute": "", "memory": ""}
    return parse_spec(SPEC.format(size=size, count=MICRO_BATCHES, **{**blank, **WAYS[way]}))


def _searched(spec: Spec, size: int, time_limit: float) -> dict[str, Any] | None:
    """The best schedule's figures; ``None`` where nothing fits."""
    try:
        found = weft.solve(spec, time_limit=time_limit)
    except Infeasible:
        return None
    plan = found.solver.get("memory_plan", {"stages": []})
    return {"step": found.makespan, "bound": found.solver.get("bound_over_placements", found.makespan_bound),
            "samples_per_second": size * MICRO_BATCHES / found.makespan, "placement": found.solver["placement"],
            "recomputed_seconds": [round(stage["recomputed"]["seconds"], 6) for stage in plan["stages"]],
            "offloaded_bytes": [stage["offloaded"]["bytes"] for stage in plan["stages"]]}


def _table(rows: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Samples a second (gap to the bound over that way's placements)")
    for heading in ("micro-batch", *WAYS, "offload buys"):
        table.add_column(heading, justify="right")
    for size, row in rows.items():
        cells = [_cell(found) for found in row.values()]
        *others, best = (0.0 if found is None else found["samples_per_second"] for found in row.values())
        table.add_row(size, *cells, f"{best / max(others) - 1:+.1%}" if max(others) else "all")
    return table


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    return f"{found['samples_per_second']:.3f} ({found['step'] / found['bound'] - 1:.1%})"


if __name__ == "__main__":
    main()
