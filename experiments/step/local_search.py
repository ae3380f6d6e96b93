"""What does local search of orders bring? The same search with and without it, in the same CPU seconds.

    python -m experiments.step.local_search [--every 27] [--seconds 3] [--seed 0]

Every so many-th problem of the generated suite (:mod:`experiments.lib.generated`: 2 to 8 devices, tight to unlimited
memory, equal and unequal stages, five shapes). Each is solved with all phases, without local search (``Moves``), and
without the CP-SAT windows (``Polish``). The clock is this process's CPU time. Writes local_search.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.generated import problem, suite
from experiments.lib.provenance import RESULTS, Record
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import Problem
from weft.solver.step.search import Infeasible, Search

#: What is left out, by the names of phases.
VARIANTS = {"all": frozenset[str](), "without local search": frozenset({"Moves"}),
            "without CP-SAT windows": frozenset({"Polish"})}


def searched(case: Problem, micro_batches: int, seconds: float, without: frozenset[str]) -> tuple[float, float]:
    """The makespan and its bound after so many CPU seconds."""
    budget = Budget(seconds=seconds, now=time.process_time)
    search = Search(case, micro_batches, budget)
    search.without = without
    with budget.limited():
        for _ in search.steps():
            if budget.spent:
                break
    found = search.result()
    return found.makespan, found.makespan_bound


def summed_up(rows: Sequence[dict[str, Any]], seconds: Sequence[float]) -> dict[str, Any]:
    """For each number of seconds: how each variant compares with the whole search."""
    summary: dict[str, Any] = {"problems": len(rows)}
    for limit in map(str, seconds):
        runs = [row["runs"][limit] for row in rows]
        gaps = [run["all"][0] / max(max(bound for _, bound in run.values()), 1e-12) - 1 for run in runs]
        summary[limit] = {"proven": sum(gap <= 1e-9 for gap in gaps), "within_1_percent": sum(g <= 0.01 for g in gaps),
                          "mean_gap": round(statistics.fmean(gaps), 5)}
        for name in VARIANTS:
            if name != "all":
                ratios = [run[name][0] / run["all"][0] for run in runs]
                summary[limit][name] = {"mean": round(statistics.fmean(ratios), 5), "most": round(max(ratios), 4),
                                        "least": round(min(ratios), 4), "longer": sum(r > 1 + 1e-9 for r in ratios),
                                        "shorter": sum(r < 1 - 1e-9 for r in ratios)}
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", default=27, type=int, help="take every so many-th problem of the suite")
    parser.add_argument("--seconds", default=[3.0], type=float, nargs="+", help="CPU seconds of each search")
    parser.add_argument("--seed", default=0, type=int, help="of the suite")
    parser.add_argument("--output", default=RESULTS / "local_search.json", type=Path, help="the file to write")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows: list[dict[str, Any]] = []
    for drawn in suite(540, options.seed)[::options.every]:
        case, micro_batches = problem(drawn)
        try:
            runs = {str(limit): {name: searched(case, micro_batches, limit, without)
                                 for name, without in VARIANTS.items()} for limit in options.seconds}
        except Infeasible:
            continue
        rows.append({"name": case.name, **drawn.family, "runs": runs})
        print(f"{case.name}: {runs}", flush=True)
    summary = summed_up(rows, options.seconds)
    print(json.dumps(summary))
    record.write({"seconds": options.seconds, "seed": options.seed, "summary": summary, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
