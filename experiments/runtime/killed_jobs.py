"""A pipeline, a data parallel training and an inference on three ranks: in one set of processes, each in its own, and
where some are killed.

    python -m experiments.runtime.killed_jobs [--runs killed]

Small models whose GPUs and links are emulated by time: a pass or a sum takes its planned time at least (20, 40 and 60
ms; two, three and one of them a round). The plan is a list schedule of all three. *Together*: the time in one set of
processes, and with processes for each job, against the plan. *Killed*: SIGKILL for one process of the pipeline in its
second batch, and for all processes of one rank; what the other jobs' losses are then, and that a job of which a process
was killed goes on from its last checkpoint. Losses are held against those of each job alone, bit for bit. Writes
results/killed_jobs.json; exits with 1 where one differs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from tests.support.shared_mixes import ADDED, RANKS, RATIO, STEPS, mix
from weft.models.share.compose import composed
from weft.runtime.plan.plan import Plan, plan_of, save_plan
from weft.runtime.ranks.launch import launch_local
from weft.runtime.share.processes import Worker, replay_in_processes
from weft.runtime.share.replay import SharedOptions, losses_path
from weft.runtime.share.result import SharedRun
from weft.solver.baselines import baseline
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

#: Milliseconds of a pass.
TIME = 20.0
ROUNDS = 2
STAGES = {job: f"tests.support.shared_mixes:{job}" for job in RATIO}


def planned() -> Plan:
    """The three jobs by a list schedule."""
    problem = composed(mix(TIME))
    made = Rounds(problem, Run.of(problem, {job: steps * ROUNDS for job, steps in RATIO.items()}, RATIO))
    schedule = replace(baseline("greedy", made.problem, made.run.rounds), rounds=made)
    return plan_of(schedule.with_solver(share={"jobs": [{"name": "data", "micro_batches": ADDED}]}))


def killing(what: Callable[[Worker], bool], after: str) -> Callable[[Sequence[Worker], Path], None]:
    """What kills those processes once each rank of the job ``after`` has written a loss."""
    def beside(workers: Sequence[Worker], folder: Path) -> None:
        numbers = [worker.number for worker in workers if worker.job == after]
        until = time.monotonic() + 120
        while not all(losses_path(folder, after, number).exists() for number in numbers):
            if time.monotonic() > until:
                raise SystemExit(f"{after} has written no loss")
            time.sleep(0.005)
        time.sleep(0.1)
        for worker in workers:
            if what(worker):
                worker.process.send_signal(signal.SIGKILL)
    return beside


def told(run: SharedRun) -> dict[str, Any]:
    """What is kept of a run."""
    return {"seconds": run.seconds, "predicted": run.predicted,
            "jobs": {job.name: {"losses": job.losses, "fault": job.fault, "steps": job.steps, "first": job.first}
                     for job in run.jobs}}


def in_one_set(path: Path) -> dict[str, Any]:
    """All jobs in one set of processes; and each alone, in the same processes."""
    ended = launch_local(RANKS, [sys.executable, "-m", "tests.support.shared_mixes", str(path.parent), str(path),
                                 "1e-3"], timeout=180)
    if any(one.code for one in ended):
        raise SystemExit(ended[0].errors)
    found: dict[str, Any] = json.loads((path.parent / "found.json").read_text())
    return found


def faults(run: dict[str, Any], alone: dict[str, list[float]], ended: Sequence[str]) -> list[str]:
    """What is not as it must be: jobs other than those that ``ended`` early are whole, and every loss is that of the
    job alone."""
    found = []
    for name, job in run["jobs"].items():
        same = list(job["losses"]) == list(alone[name][job["first"]:job["first"] + len(job["losses"])])
        whole = job["first"] + job["steps"] >= STEPS
        if not same:
            found.append(f"{name}: losses {job['losses']} are not those alone, {alone[name]}")
        if (job["fault"] is not None) != (name in ended) or (name not in ended and not whole):
            found.append(f"{name}: {job['steps']} steps, {job['fault']}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", choices=("all", "killed"), default="all", help="which runs")
    parser.add_argument("--output", type=Path, default=RESULTS / "killed_jobs.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    os.environ.pop("RANK", None)
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "plan.json"
        plan = planned()
        save_plan(plan, path)
        one = in_one_set(path)
        alone = {job: own or [] for job, own in one["alone"].items()}
        asked = SharedOptions(STAGES, stretched=True)
        saving = replace(asked, checkpoint=Path(name) / "saved", checkpoint_every=1)
        rows.append({"run": "one set of processes", "seconds": one["seconds"], "predicted": one["predicted"],
                     "jobs": one["together"]})
        print(json.dumps(rows[-1]))
        runs: dict[str, tuple[SharedOptions, Callable[[Sequence[Worker], Path], None] | None, tuple[str, ...]]] = {
            "own processes": (asked, None, ()),
            "pipeline's rank 1 killed": (saving, killing(lambda w: w.job == "pipeline" and w.rank == 1, "pipeline"),
                                         ("pipeline",)),
            "resumed": (replace(saving, resume=True), None, ()),
            "all of rank 2 killed": (asked, killing(lambda w: w.rank == 2, "data"), ("pipeline", "answers"))}
        for title, (how, beside, ended) in runs.items():
            if options.runs == "killed" and title != "pipeline's rank 1 killed":
                continue
            rows.append({"run": title, **told(replay_in_processes(path, how, beside=beside))})
            wrong += [f"{title}: {fault}" for fault in faults(rows[-1], alone, ended)]
            print(json.dumps(rows[-1]))
    record.write({"steps": STEPS, "ranks": RANKS, "rows": rows, "wrong": wrong})
    print(*wrong or ["all losses are those of each job alone"], sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
