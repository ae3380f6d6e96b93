"""The makespans of the generated suite that were left open: solved again, how much of each gap is left?

    python -m experiments.step.open_gaps [--every 4] [--effort 1] [--against never_worse/suite.json]

Takes every so many-th, widest first, of the problems in an earlier run of :mod:`experiments.step.never_worse` whose
makespan was not proven, and solves it with the effort of that run. Writes makespan, bound and CPU seconds of both, and
counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.generated import Instance, problem, suite
from experiments.lib.provenance import RESULTS, Record
from weft.solver.step.search import solve


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", default=4, type=int, help="take every so many-th open problem")
    parser.add_argument("--effort", default=1.0, type=float, help="deterministic seconds for each problem")
    parser.add_argument("--against", default=RESULTS / "never_worse" / "suite.json", type=Path)
    parser.add_argument("--output", default=RESULTS / "open_gaps.json", type=Path)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    before = json.loads(options.against.read_text())
    by_name = {problem(drawn)[0].name: drawn for drawn in suite(len(before["rows"]), before["seed"])}
    still_open = sorted((row for row in before["rows"] if row["weft"] and not row["proven"]),
                        key=lambda row: -float(row["weft"]) / float(row["bound"]))
    rows = []
    for row in still_open[::options.every]:
        rows.append(_again(by_name[row["name"]], row, options.effort))
        print(f"{row['name']}: {rows[-1]['gap_before']:.3f} -> {rows[-1]['gap']:.3f}", flush=True)
    counts = _counts(rows)
    print(json.dumps(counts))
    record.write({"effort": options.effort, "open_before": len(still_open), "summary": counts, "rows": rows})
    return 0


def _again(drawn: Instance, row: dict[str, Any], effort: float) -> dict[str, Any]:
    case, micro_batches = problem(drawn)
    began = time.process_time()
    found = solve(case, micro_batches, time_limit=3600.0, effort=effort)
    return {"name": case.name, **drawn.family, "makespan_before": row["weft"], "bound_before": row["bound"],
            "gap_before": round(row["weft"] / row["bound"] - 1, 5), "makespan": found.makespan,
            "bound": found.makespan_bound, "gap": round(found.gap, 5),
            "cpu_seconds": round(time.process_time() - began, 2)}


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"problems": len(rows), "proven": sum(row["gap"] == 0 for row in rows),
            "within_1_percent_before": sum(row["gap_before"] <= 0.01 for row in rows),
            "within_1_percent": sum(row["gap"] <= 0.01 for row in rows),
            "shorter": sum(row["makespan"] < row["makespan_before"] * (1 - 1e-9) for row in rows),
            "longer": sum(row["makespan"] > row["makespan_before"] * (1 + 1e-9) for row in rows),
            "higher_bound": sum(row["bound"] > row["bound_before"] * (1 + 1e-9) for row in rows),
            "lower_bound": sum(row["bound"] < row["bound_before"] * (1 - 1e-9) for row in rows),
            "mean_gap_before": round(statistics.fmean(row["gap_before"] for row in rows), 5),
            "mean_gap": round(statistics.fmean(row["gap"] for row in rows), 5),
            "median_cpu_seconds": statistics.median(row["cpu_seconds"] for row in rows)}


if __name__ == "__main__":
    raise SystemExit(main())
