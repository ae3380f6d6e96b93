"""The Tessel evaluation's problems: period, its bound, whether it is proven, and the CPU seconds of the search.

    python -m experiments.period.tessel_search [--first N] [--effort 1] [--output tessel_search.json]

Also solves each for 128 micro-batches and holds the makespan against its bound. One core; CPU seconds are those of
the search alone. They depend on the machine: read them beside the count of problems, not beside other people's.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence

from experiments.lib.provenance import begun
from tests.support.tessel_shapes import TESSEL_PROBLEMS, shape
from weft.solver.cpsat.budget import Budget
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.problem import Problem
from weft.solver.step.search import solve
from weft.solver.ticks import TickProblem


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write."""
    options, record = begun(__doc__, arguments, "tessel_search.json", effort=1.0, first=int)
    problems = [shape(*entry) for entry in TESSEL_PROBLEMS[:options.first]]
    for problem in problems:
        _period(problem)  # loads what is loaded on first use
    rows = [_measure(problem, options.effort) for problem in problems]
    print(*map(json.dumps, rows), sep="\n")
    mean = math.exp(sum(math.log(max(float(row["cpu_seconds"]), 1e-4)) for row in rows) / len(rows))
    print(f"{sum(bool(row['proven']) for row in rows)} of {len(rows)} periods proven; "
          f"geometric mean {mean:.4f} CPU s, most {max(float(row['cpu_seconds']) for row in rows):.3f}")
    record.write({"rows": rows, "geometric_mean_cpu_seconds": mean})
    return 0


def _period(problem: Problem) -> Bracket:
    instance = TickProblem.of(problem)
    return find_period(instance, one_at_a_time(instance), Budget())


def _measure(problem: Problem, effort: float) -> dict[str, str | float | bool]:
    began = time.process_time()
    search = _period(problem)
    seconds = time.process_time() - began
    schedule = solve(problem, 128, effort=effort)
    return {"problem": problem.name, "period": search.instance.time(search.best.period),
            "period_bound": search.instance.bound(search.refuted, 1), "proven": search.proven,
            "cpu_seconds": round(seconds, 4), "makespan": schedule.makespan,
            "makespan_bound": schedule.makespan_bound, "gap": round(schedule.gap, 5)}


if __name__ == "__main__":
    main()
