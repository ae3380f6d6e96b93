"""What helps the period search: each technique left out in turn, on the same instances in one run.

    python -m experiments.period.ablation [--effort 2] [--only TEXT] [--output ablation.json]

Each row is one instance of :mod:`experiments.period.scale`; a column is the search ``without`` one technique of
:data:`weft.solver.period.registry.OPTIONAL`. Shown are CPU seconds, without what a published start takes, as a multiple
of the whole search's, and the gap that was left where the search did not end within ``--effort`` deterministic seconds
of CP-SAT and 10 seconds. Without least distances, models know no more than dependencies either.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from experiments.period.scale import problem
from weft.solver.baselines import BASELINES
from weft.solver.cpsat.budget import Budget
from weft.solver.period.improvers.published_start import PublishedStart
from weft.solver.period.improvers.starts import one_at_a_time, periodic_seed
from weft.solver.period.periodic import Periodic
from weft.solver.period.registry import OPTIONAL
from weft.solver.period.search import find_period
from weft.solver.ticks import TickProblem

INSTANCES = [("V", 16, False, 1.5), ("M", 8, True, 1.5), ("NN", 8, True, 1.5), ("K", 8, True, 1.25),
             ("V2", 8, False, 1.5), ("V2", 8, True, 1.25), ("loop2", 8, True, 1.25), ("loop2", 32, True, 1.0),
             ("loop2", 32, True, 2.0), ("V2", 32, False, 1.25)]
#: The whole search, then what is left out.
VARIANTS = ("whole", *OPTIONAL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--effort", default=2.0, type=float)
    parser.add_argument("--only", default="", help="instances whose name contains this")
    parser.add_argument("--output", default=RESULTS / "ablation.json", type=Path)
    options = parser.parse_args(arguments)
    record, rows = Record(options.output), []
    for shape, devices, split, cap in INSTANCES:
        case = problem(shape, devices, split, cap, seed=0)
        if options.only not in case.name:
            continue
        row: dict[str, Any] = {"name": case.name, "blocks": len(case.blocks)}
        for name in VARIANTS:
            row[name] = _measure(TickProblem.of(case), name, options.effort)
        rows.append(row)
        whole = row["whole"]["cpu_seconds"]
        print(f"{case.name:28} {whole:6.2f} s" + "".join(
            f"  {name} x{row[name]['cpu_seconds'] / whole:.1f}"
            + ("" if row[name]["proven"] else f" ({row[name]['gap']:.1%})") for name in VARIANTS[1:]), flush=True)
    record.write({"effort": options.effort, "rows": rows})
    return 0


def _best_start(instance: TickProblem) -> Periodic:
    """The shortest period that a published schedule shows; the search has a list scheduler of its own."""
    return min((periodic_seed(instance, name) for name in BASELINES if name != "greedy"), key=lambda seed: seed.period)


def _measure(instance: TickProblem, name: str, effort: float) -> dict[str, Any]:
    start: Periodic = one_at_a_time(instance) if name == PublishedStart.name else _best_start(instance)
    began = time.process_time()
    found = find_period(instance, start, Budget(seconds=10.0, deterministic=effort),
                        without=() if name == "whole" else (name,))
    return {"period": float(found.best.period), "bound": float(found.refuted), "proven": found.proven,
            "gap": float(found.best.period / found.refuted) - 1,
            "cpu_seconds": round(time.process_time() - began, 3)}


if __name__ == "__main__":
    main()
