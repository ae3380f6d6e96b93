"""Runs every job of a plan in its own processes on this machine: if one is killed, only its job ends.

Each job has one process per rank, with its own rendezvous, process groups and watchdog. On each rank the jobs'
processes take turns through a board in shared memory (:mod:`weft.runtime.share.turns`). This process starts them,
waits, and collects their results.

A suspended process (SIGSTOP) is killed after half of the timeout, as others wait for its turns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from weft.runtime.plan.plan import Plan
from weft.runtime.ranks.children import Start, children
from weft.runtime.ranks.launch import LOOK, answered, free_port, rank_environment
from weft.runtime.ranks.leftovers import shared_folder
from weft.runtime.replay.options import ReplayError
from weft.runtime.share.replay import (
    JobRun,
    SharedOptions,
    SharedRun,
    checked_shared,
    losses_path,
    predicted_seconds,
    result_path,
    scale_of,
    turns_of,
)
from weft.runtime.share.stages_plan import JobPlan

#: Seconds to wait for the lock of a board before the processes are checked again.
_WITHIN = 0.5
#: Seconds in which the other processes of a job may report their activity after one was killed.
_REST = 3.0
_ERRORS = 2  # standard error: jobs' output is not this process's output
_STOPS = (signal.SIGTERM, signal.SIGHUP)
_TURNS = "weft-turns"  # prefix of the folders of turns


@dataclass(frozen=True)
class JobWorker:
    """The process ``number`` of ``job``, on ``rank`` of the plan with jobs."""

    job: str
    number: int
    rank: int
    process: subprocess.Popen[bytes]


def replay_in_processes(plan_path: str | os.PathLike[str], options: SharedOptions, *,
                        beside: Callable[[Sequence[JobWorker], Path], None] | None = None) -> SharedRun:
    """Run the jobs of the plan in ``plan_path``, each in its own processes on this machine, until all have ended.

    If a process ends early for any reason, its job ends on all ranks; the other jobs continue, with the same losses.
    ``beside`` is called with the running processes and the folder of their turns. Raises
    :class:`~weft.runtime.replay.options.ReplayError` or :class:`~weft.solver.io.entries.FormatError` for invalid
    input.
    """
    name = os.fspath(plan_path)
    if "RANK" in os.environ:
        raise ReplayError(f"{name}: the jobs of a plan have processes of their own, which are started here: call it "
                          "without torchrun; on several machines start each job with a torchrun of its own (--job NAME "
                          "--turns FOLDER)")
    plan, jobs = checked_shared(name, options)
    with answered(_STOPS, _stop), shared_folder(_TURNS) as folder:
        with _workers(name, jobs, options, folder) as workers:
            if beside is not None:
                beside(workers, folder)
            ends = _wait(plan, jobs, workers, folder, options.timeout)
        runs = tuple(_result(job, folder, [(worker, ends[worker.job, worker.number]) for worker in workers
                                           if worker.job == job.name]) for job in jobs)
    return SharedRun(runs, max(run.seconds for run in runs),
                     predicted_seconds(plan, jobs, runs, scale_of(plan, options)))


@contextmanager
def _workers(name: str, jobs: Sequence[JobPlan], options: SharedOptions, folder: Path) -> Iterator[list[JobWorker]]:
    """The processes of all jobs; all are ended at the end of the block."""
    places, starts = [], []
    ports: set[int] = set()
    for job in jobs:
        while (port := free_port()) in ports:
            pass
        ports.add(port)
        for number, rank in enumerate(job.ranks):
            places.append((job.name, number, rank))
            starts.append(Start(_command(name, job.name, replace(options, turns=folder)),
                                rank_environment(number, len(job.ranks), port), stdout=_ERRORS))
    with children(starts, [folder]) as running:
        yield [JobWorker(*place, process) for place, process in zip(places, running, strict=True)]


def _stop(number: int) -> NoReturn:
    """Handle SIGTERM and SIGHUP like Ctrl-C: no process and no folder is left."""
    for each in _STOPS:
        signal.signal(each, signal.SIG_IGN)  # the cleanup takes no time
    raise KeyboardInterrupt


def _wait(plan: Plan, jobs: tuple[JobPlan, ...], workers: Sequence[JobWorker], folder: Path, timeout: float
          ) -> Mapping[tuple[str, int], tuple[float, int]]:
    """The time and the exit code of each process's end. Its turns are released here, as it may have ended before it
    registered. A process suspended for half of ``timeout`` is killed before others that wait for its turns time out."""
    ends: dict[tuple[str, int], tuple[float, int]] = {}
    stopped: dict[JobWorker, float] = {}
    while len(ends) < len(workers):
        time.sleep(LOOK)
        for worker in workers:
            _end_stopped(worker, stopped, timeout / 2)
        _end_rest(workers, ends, timeout)
        for worker in workers:
            code = worker.process.poll()
            if code is None or (worker.job, worker.number) in ends:
                continue
            ended = time.monotonic()
            with suppress(TimeoutError):  # the owner of the board's lock is stopped: retry once it has been killed
                turns, board = turns_of(plan, jobs, worker.rank, folder, patience=0.0, within=_WITHIN)
                with closing(board):
                    turns.leave(worker.job)
                ends[worker.job, worker.number] = ended, code
    return ends


def _end_rest(workers: Sequence[JobWorker], ends: Mapping[tuple[str, int], tuple[float, int]], timeout: float) -> None:
    """Kill the remaining processes of jobs with a killed process after a grace period. Otherwise they would wait for it
    up to their timeout, and other jobs for their turns."""
    killed: dict[str, float] = {}
    for (job, _), (when, code) in ends.items():
        if code < 0:
            killed[job] = min(when, killed.get(job, when))
    for worker in workers:
        if worker.job in killed and time.monotonic() - killed[worker.job] > min(_REST, timeout / 4) and (
                worker.process.returncode is None):
            worker.process.kill()


def _end_stopped(worker: JobWorker, stopped: dict[JobWorker, float], patience: float) -> None:
    """Report that ``worker`` is suspended (SIGSTOP), and kill it after ``patience`` seconds. ``stopped``: the time of
    each suspension. On systems without ``waitid``, the waiting processes report whom they wait for."""
    if sys.platform == "win32" or not hasattr(os, "waitid") or worker.process.returncode is not None:
        return
    try:
        news = os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    except ChildProcessError:
        return
    who = f"weft: rank {worker.rank} of job {worker.job}"
    if news is not None and news.si_code == os.CLD_CONTINUED:
        stopped.pop(worker, None)
    elif news is not None:
        stopped[worker] = time.monotonic()
        sys.stderr.write(f"{who} is stopped ({_signal(news.si_status)}): it is ended after {patience:g} s, as others "
                         "wait for its turns\n")
    if worker in stopped and time.monotonic() - stopped[worker] > patience:
        del stopped[worker]
        sys.stderr.write(f"{who} was stopped for {patience:g} s: it is ended\n")
        worker.process.kill()


def _result(job: JobPlan, folder: Path, ends: Sequence[tuple[JobWorker, tuple[float, int]]]) -> JobRun:
    """The result of ``job``: from its first process if available, otherwise from the losses that each process wrote."""
    result = result_path(folder, job.name)
    if result.exists():
        entry = json.loads(result.read_text())
        return JobRun(**{**entry, "losses": tuple(entry["losses"])})
    bad = sorted((when, worker.rank, code) for worker, (when, code) in ends if code)
    # All processes of a job end with the first one, so an external signal is the cause.
    _, rank, code = next((end for end in bad if end[2] < 0), bad[0] if bad else (0.0, job.ranks[0], 1))
    fault = f"rank {rank} was ended by {_signal(-code)}" if code < 0 else f"rank {rank} ended with exit code {code}"
    rows = [_losses(losses_path(folder, job.name, number)) for number in range(len(job.ranks))]
    both = sorted(set.intersection(*(set(row) for row in rows)))
    losses = tuple(sum(row[batch] for row in rows) / job.replicas for batch in both)
    return JobRun(job.name, losses if job.trains else (), fault, steps=len(both), first=both[0] if both else 0)


def _losses(path: Path) -> dict[int, float]:
    """Losses by batch; an incomplete last line is dropped."""
    found: dict[int, float] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                batch, loss = json.loads(line)
                found[batch] = loss
    return found


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _command(name: str, job: str, options: SharedOptions) -> list[str]:
    found = [sys.executable, "-m", "weft", "replay", name, "--job", job, "--turns", os.fspath(options.turns or ""),
             "--stages", f"{job}={options.stages[job]}", "--timeout", repr(options.timeout)]
    if options.stretched:
        found += ["--stretched", "--time-scale", repr(options.time_scale)]
    if options.stop_folder is not None:
        found += ["--stop-folder", os.fspath(options.stop_folder)]
    if options.checkpoint is not None:
        found += ["--checkpoint", os.fspath(options.checkpoint)]
    if options.checkpoint_every:
        found += ["--checkpoint-every", str(options.checkpoint_every)]
    return found + [option for option, given in (("--resume", options.resume), ("--allow-unsplit",
                    options.allow_unsplit), ("--allow-other-model", options.allow_other_model)) if given]
