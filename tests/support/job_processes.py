"""One process of a job of a plan, in tests that run its jobs several times: what joins the others of its job once, and
takes turns with those of other jobs in each run.

Processes are numbered by RANK: all of the first job, then those of the next one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ranks import PATIENCE, launch_forked
from weft.runtime.plan.plan import Plan, load_plan, save_plan
from weft.runtime.ranks.launch import Ended, free_port
from weft.runtime.ranks.session import Session, join
from weft.runtime.share.job_runner import RunOptions
from weft.runtime.share.replay import Factory, run_job, taking_turns
from weft.runtime.share.stages_plan import JobPlan, job_plans
from weft.runtime.share.turns import Turns


def launch_jobs(module: str, folder: Path, plan: Plan) -> Sequence[Ended]:
    """How the processes of all jobs ended, each ``python -m module FOLDER PORTS``; all must have ended well."""
    save_plan(plan, folder / "plan.json")
    jobs = job_plans(plan)
    ended = launch_forked(sum(len(job.ranks) for job in jobs), [
        sys.executable, "-m", module, str(folder), *(str(free_port()) for _ in jobs)])
    assert not any(one.code for one in ended), "".join(one.errors for one in ended)
    return ended


def found_by(folder: Path) -> dict[str, dict[str, Any]]:
    """By run and job, what :meth:`JobProcess.close` wrote."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.found.json")):
        for run, own in json.loads(path.read_text()).items():
            found.setdefault(run, {})[path.name.partition(".")[0]] = own
    return found


def turns_taken(folder: Path, run: str) -> Mapping[int, Sequence[tuple[float, str, str, int]]]:
    """By rank, when in this run which job took a turn with which block, and its number."""
    return {int(path.stem[4:]): [tuple(json.loads(line)) for line in path.read_text().splitlines()]
            for path in (folder / f"turns of {run}").glob("rank*.taken")}


@contextmanager
def joined(folder: Path, ports: Sequence[str]) -> Iterator[JobProcess]:
    """This process among those of its job."""
    plan = load_plan(folder / "plan.json")
    jobs = job_plans(plan)
    place, job, number = [(place, job, number) for place, job in enumerate(jobs) for number in range(len(job.ranks))][
        int(os.environ["RANK"])]
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(len(job.ranks)),
                      LOCAL_WORLD_SIZE=str(len(job.ranks)), MASTER_PORT=ports[place])
    with join(PATIENCE, replicas=job.replicas) as session:
        own = JobProcess(folder, plan, job, number, session)
        yield own
        if not number:
            (folder / f"{job.name}.found.json").write_text(json.dumps(own.found))


@dataclass
class JobProcess:
    """Process ``number`` of ``job``."""

    folder: Path
    plan: Plan
    job: JobPlan
    number: int
    session: Session
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Of the plan with jobs."""
        return self.job.ranks[self.number]

    def run(self, name: str, factory: Factory, *, unit: float = 0.0, only: Iterable[str] | None = None) -> None:
        """A run of all jobs, or of some; a time unit of the plan lasts ``unit`` seconds at least. A file of its name in
        the folder ends a job."""
        turned = self.folder / f"turns of {name}"
        turned.mkdir(exist_ok=True)
        with taking_turns(self.plan, self.job, self.number, turned, 60.0) as turns:
            if only is not None and self.job.name not in only:
                return
            _note(turns, turned / f"rank{self.rank}.taken")
            found = run_job(self.job, self.session, factory, turns,
                            RunOptions(unit, stopped_by=self.folder / self.job.name))
        if found is not None:
            self.found[name] = {**asdict(found.jobs[0]), "ended": time.monotonic()}


def _note(turns: Turns, path: Path) -> None:
    """Write down whatever takes a turn, while it has it."""
    take = turns.take

    def noted(key: tuple[str, str, int], devices: Iterable[int]) -> None:
        take(key, devices)
        with path.open("a") as file:
            file.write(json.dumps([time.monotonic(), *key]) + "\n")

    turns.take = noted  # type: ignore[method-assign]
