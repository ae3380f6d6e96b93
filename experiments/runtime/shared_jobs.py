"""Two small trainings in one set of processes: time and losses together, alone, and where one fails or is stopped.

    python -m experiments.runtime.shared_jobs [--repeats N]

Two ranks on gloo train two models whose GPUs and links are emulated by time: a block takes its planned time at least
(50 ms of computation and 50 ms of sums a step, one of the jobs with its sums in two parts, beside its own backward).
The plan is that of ``weft share``. Held against the jobs one after another, each with its own overlap; losses against
those that each has where ``weft replay --replicas 2`` trains it by itself. Writes results/shared_jobs.json; exits with
1 where together is less than 1.4 times as fast, or a loss differs in one bit.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from tests.support.shared_ranks import RANKS, STEPS, data_parallel
from weft.app.lib.options import SearchOptions
from weft.app.share.search import Question, share_jobs
from weft.runtime.plan.plan import plan_of, save_plan
from weft.runtime.ranks.launch import launch_local
from weft.solver.judge.collective_order import collective_order_faults

#: Computation and sums of a step in ms.
FORWARD, BACKWARD, SUMS = 20.0, 30.0, 50.0
LEAST = 1.4


def run_once(folder: Path) -> dict[str, Any]:
    """All runs of the two jobs on two ranks."""
    ended = launch_local(RANKS, [sys.executable, "-m", "tests.support.shared_ranks", str(folder),
                                 str(folder / "plan.json")], timeout=180)
    if any(one.code for one in ended):
        raise SystemExit(ended[0].errors)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def row(found: dict[str, Any]) -> dict[str, Any]:
    """Times of one repeat, and what must be equal."""
    alone = dict(zip("ab", found["alone"], strict=True))
    same = {run: all(_begins(job["losses"], alone[name], run, name) for name, job in found[run]["jobs"].items())
            for run in ("together", "a", "b", "failed", "stopped", "short")}
    turn = found["a"]["seconds"] + found["b"]["seconds"]
    return {"together": found["together"]["seconds"], "predicted": found["together"]["predicted"], "in_turn": turn,
            "speedup": turn / found["together"]["seconds"], "losses_identical": same,
            "faults": {run: re.sub(r"\S*/", "", found[run]["jobs"]["b"]["fault"]) for run in ("failed", "stopped")},
            "steps": {run: {name: len(job["losses"]) for name, job in found[run]["jobs"].items()}
                      for run in ("together", "failed", "stopped", "short")},
            "one_order": not any(collective_order_faults({int(rank): sums for rank, sums in found[run]["sums"].items()})
                                 for run in ("together", "failed", "stopped", "short"))}


def _begins(losses: Sequence[float], alone: Sequence[float], run: str, job: str) -> bool:
    """Whether the losses are those of the job alone, bit for bit, and all of them where nothing ended it."""
    both = min(len(losses), len(alone))
    whole = job == "a" or run in ("together", "b")
    return list(losses[:both]) == list(alone[:both]) and (not whole or both == STEPS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "shared_jobs.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    jobs = [data_parallel("a", 1, FORWARD, BACKWARD, SUMS), data_parallel("b", 2, FORWARD, BACKWARD, SUMS)]
    shared = share_jobs(jobs, Question("1:1", rounds=STEPS), SearchOptions(time_limit=60.0, effort=5.0))
    rows = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as name:
            save_plan(plan_of(shared.schedule), Path(name) / "plan.json")
            rows.append(row(run_once(Path(name))))
            print(json.dumps(rows[-1]))
    speedup = statistics.median(entry["speedup"] for entry in rows)
    found = {"steps": STEPS, "ranks": RANKS, "period": shared.round.period, "proven": shared.proven,
             "planned_speedup": shared.speedup, "speedup": speedup, "rows": rows}
    record.write(found)
    good = all(all(entry["losses_identical"].values()) and entry["one_order"] for entry in rows)
    print(f"together {speedup:.3f} times as fast as in turn (planned {shared.speedup:.3f}); losses and orders "
          f"{'are' if good else 'ARE NOT'} as they must be")
    return int(not good or speedup < LEAST)


if __name__ == "__main__":
    raise SystemExit(main())
