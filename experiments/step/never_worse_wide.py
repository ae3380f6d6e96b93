"""Weft against every known schedule on generated problems with choices, lanes, jobs and classes: is it ever worse?

    python -m experiments.step.never_worse_wide [--count 460] [--effort 0.5] [--seed 0] [--processes 2]

The problems are those of :mod:`experiments.lib.extended`. A known schedule gets each assignment of the choices, of more
than 16 those that take the first option of each, the second ..., and on jobs and classes the stand-ins that serve it
best (:mod:`weft.solver.baselines.on_rounds`); it counts where the judge passes it. With the 540 plain problems of
:mod:`experiments.step.never_worse` these are 1,000. Writes never_worse_wide.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.extended import EXTENSIONS, Extended, extended, widened
from experiments.lib.provenance import RESULTS, Record
from weft.solver.baselines.on_rounds import known_on_rounds
from weft.solver.choices.looks import first_looks
from weft.solver.choices.solve import solve_wide
from weft.solver.control.parallel import mapped
from weft.solver.judge.validate import validate, violations
from weft.solver.problem import ProblemError
from weft.solver.schedule import RELATIVE_TOLERANCE
from weft.solver.step.search import Infeasible
from weft.solver.wide.rounds import Rounds


def compare(drawn: Extended, effort: float) -> dict[str, Any]:
    """One instance: weft's makespan and the best of every known schedule over the assignments."""
    began = time.process_time()
    case, run = widened(drawn)
    rivals: dict[str, float] = {}
    for options in first_looks(case):
        try:
            rounds = Rounds(case.under(options), run)
            known = known_on_rounds(rounds)
        except ProblemError:
            continue
        for name, schedule in known.items():
            if schedule.makespan < rivals.get(name, float("inf")) and not violations(schedule, limit=1):
                rivals[name] = schedule.makespan
    row: dict[str, Any] = {"name": case.name, **drawn.family, "seed": drawn.plain.seed, "rivals": rivals,
                           "assignments": case.assignment_count,
                           "rivals_seconds": round(time.process_time() - began, 2)}
    began = time.process_time()
    try:
        own = solve_wide(case, run, time_limit=600.0, effort=effort)
        validate(own)
    except Infeasible as error:
        return {**row, "weft": None, "infeasible": str(error)}
    except Exception as error:  # whatever goes wrong belongs in the tally, and the suite goes on
        return {**row, "weft": None, "error": f"{type(error).__name__}: {error}"}
    return {**row, "weft": own.makespan, "bound": own.makespan_bound, "proven": own.gap == 0,
            "choices": dict(own.choices), "seconds": round(time.process_time() - began, 2)}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of ``rows``, all together and by extension."""
    return {"all": _counts(rows), "by_extension": {
        name: _counts([row for row in rows if row["extension"] == name]) for name in EXTENSIONS},
        "worse": [row["name"] for row in rows if _gain(row) is not None and (_gain(row) or 0) < 0],
        "failed": [{"name": row["name"], "error": row["error"]} for row in rows if "error" in row]}


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    solved = [row for row in rows if row["weft"] is not None]
    gains = [gain for gain in map(_gain, solved) if gain is not None]
    gaps = [row["weft"] / row["bound"] - 1 for row in solved if row["bound"] > 0]
    return {"problems": len(rows), "solved": len(solved), "infeasible": sum("infeasible" in row for row in rows),
            "proven_optimal": sum(row["proven"] for row in solved), "with_a_rival": len(gains),
            "worse": sum(gain < 0 for gain in gains), "tied": sum(gain == 0 for gain in gains),
            "better": sum(gain > 0 for gain in gains),
            **({"mean_gain": round(statistics.fmean(gains), 5), "largest_gain": round(max(gains), 5)} if gains else {}),
            **({"mean_gap": round(statistics.fmean(gaps), 5), "widest_gap": round(max(gaps), 5)} if gaps else {})}


def _gain(row: dict[str, Any]) -> float | None:
    """What weft saves of the best rival's makespan; ``None`` without one."""
    if row["weft"] is None or not row["rivals"]:
        return None
    gain = 1 - row["weft"] / min(row["rivals"].values())
    return 0.0 if abs(gain) <= RELATIVE_TOLERANCE else gain


def _work(task: tuple[Extended, float]) -> dict[str, Any]:
    return compare(*task)


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve the problems, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", default=460, type=int)
    parser.add_argument("--effort", default=0.5, type=float, help="deterministic seconds for each problem")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--processes", default=2, type=int)
    parser.add_argument("--output", default=RESULTS / "never_worse_wide.json", type=Path)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows: list[dict[str, Any]] = []
    tasks = [(drawn, options.effort) for drawn in extended(options.count, options.seed)]
    for row in mapped(_work, tasks, options.processes):
        rows.append(row)
        if "error" in row or (_gain(row) or 0) < 0:
            print(f"{row['name']}: weft {row.get('error', row['weft'])}, rivals {row['rivals']}", flush=True)
        if len(rows) % 20 == 0:
            print(f"{len(rows)} of {len(tasks)}", flush=True)
    summary = summarise(rows)
    print(json.dumps(summary, indent=1))
    record.write({"effort": options.effort, "seed": options.seed, "summary": summary, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
