"""SIGTERM and SIGINT at some moment of a long command: what is lost, and how long the end takes.

A command is started anew and signalled once, after its start or after its first answer. A result is lost where an
answer had been told (a line of progress) and no result is printed or written; before the first answer nothing can be
lost.
Processes that stay and tracebacks count as faults, too.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.builders import pipeline, v
from tests.support.paths import ROOT, written
from weft.solver import Problem, save_problem


@dataclass(frozen=True)
class Case:
    """A command; moments are drawn from its first ``seconds``. A line on standard error with ``answer`` (a pattern) in
    it tells of one; ``kept`` says whether its result is there, from the folder and what was printed."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    answer: str
    kept: Callable[[Path, str], bool]


@dataclass(frozen=True)
class Ended:
    """How a signalled command ended: its status, the seconds it took from the signal, of the clock and of its CPU time
    (a sweep's with all that its workers used), whether it had told an answer
    before, whether its result is there, and what is wrong with it."""

    status: int
    seconds: float
    cpu_seconds: float
    answered: bool
    kept: bool
    faults: tuple[str, ...]
    printed: str


def cases(folder: Path) -> list[Case]:
    """Every long command on inputs written to ``folder``; none ends by itself within its seconds."""
    deep, small = folder / "deep.json", folder / "small.json"
    problem = _pipeline(8, memory=7)
    save_problem(problem, deep)
    save_problem(_pipeline(4, memory=4), small)
    graph = written(folder / "graph.json", json.dumps(_graph()))

    def file(name: str) -> Callable[[Path, str], bool]:
        return lambda where, _: (where / name).exists() and (where / name).stat().st_size > 100

    limit = ("--time-limit", "300")
    return [
        Case("solve", ("solve", str(deep), "-n", "24", "-o", "{}/out.json", *limit), 2.5, "best", file("out.json")),
        Case("compare", ("compare", str(deep), "-n", "24", *limit), 2.5, "best", lambda _, text: "lower bound" in text),
        Case("sweep", ("sweep", str(small), "-n", "1,2,40", "--workers", "2", "--no-cache", "--no-refine", "-o",
                       "{}/sweep.json", *limit), 2.5, "gap|optimal", file("sweep.json")),
        Case("explain", ("explain", str(deep), "-n", "24", "--what-if", *limit), 2.5, "best",
             lambda _, text: "critical path" in text.lower()),
        Case("demo", ("demo", "-o", "{}/demo", *limit), 2.5, "best", file("demo/plan.json")),
        Case("place", ("place", str(graph), "-o", "{}/placed.json", *limit), 2.5, r": \d", file("placed.json")),
        Case("latency", ("latency", str(deep), "-n", "24", "-o", "{}/out.json", *limit), 2.5, "latency",
             file("out.json")),
    ]


def signalled(case: Case, number: int, after: float, folder: Path, *, answer: bool = False) -> Ended:
    """Run ``case`` in ``folder`` and send it the signal ``number`` once, ``after`` seconds of its CPU time (in a sweep
    that waits for its workers, of the clock) after it began to listen, or after its first ``answer``."""
    command = [sys.executable, "-m", "weft", *(part.replace("{}", str(folder)) for part in case.arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                               start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    told: list[str] = []
    before = _cpu_of_ended()
    assert process.stderr is not None and process.stdout is not None
    listener = threading.Thread(target=lambda: told.extend(iter(process.stderr.readline, "")), daemon=True)  # type: ignore[union-attr]
    listener.start()
    while process.poll() is None and not (_listens(process.pid) and (
            not answer or any(re.search(case.answer, line) for line in list(told)))):
        time.sleep(0.02)
    began, used = time.monotonic(), _cpu(process.pid)
    while process.poll() is None and _cpu(process.pid) - used < after and time.monotonic() - began < 5 * after:
        time.sleep(0.01)
    early = process.poll() is not None
    answered = any(re.search(case.answer, line) for line in list(told))
    began, used = time.monotonic(), _cpu(process.pid)
    process.send_signal(number)
    faults: list[str] = []
    try:
        printed = process.stdout.read() if _wait(process, 600.0) else ""
    finally:
        seconds = time.monotonic() - began
        if process.poll() is None:
            faults.append("does not end")
            process.kill()
            printed = ""
    cpu = _cpu_of_ended() - before - used
    listener.join(10)
    text = "".join(told)
    if "Traceback" in text + printed:
        faults.append("traceback")
    if left := _group(process.pid):
        faults.append(f"leaves {len(left)} processes")
        os.killpg(process.pid, signal.SIGKILL)
    if early:
        faults.append("ended before the signal")
    return Ended(process.returncode, seconds, cpu, answered, case.kept(folder, printed), tuple(faults), text + printed)


def _listens(process: int) -> bool:
    """Whether ``process`` has a handler of its own for SIGTERM: before, Python itself is starting."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def _cpu(process: int) -> float:
    """Seconds of CPU time that ``process`` has used."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu_of_ended() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait(process: subprocess.Popen[str], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _group(leader: int) -> list[int]:
    """The processes of the session that ``leader`` began, a moment after it ended."""
    for _ in range(20):
        found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _session(path) == leader]
        if not found:
            return []
        time.sleep(0.1)
    return found


def _session(process: Path) -> int:
    try:
        state, _, _, session = (process / "stat").read_text().rpartition(") ")[2].split()[:4]
    except (OSError, ValueError):
        return -1
    return -1 if state == "Z" else int(session)


def _pipeline(devices: int, memory: int) -> Problem:
    """Two stages a device, down and back, with split backward, unlike durations and little memory: never proven."""
    return replace(pipeline(v(devices), forward=1.37, split=(1.11, 0.73), memory=memory), time_unit="ms")


def _graph(operators: int = 90) -> dict[str, object]:
    """A graph of unlike operators, each of which reads two of the nine before it: nobody proves the best quickly."""
    draw = random.Random(5)
    costs = [draw.randint(1, 30) / 2 for _ in range(operators)]
    nodes = [{"id": i, "supportedOnFpga": 1, "cpuLatency": draw.randint(50, 900), "fpgaLatency": draw.randint(5, 90),
              "size": draw.randint(1, 20), "isBackwardNode": 0} for i in range(operators)]
    edges = [{"sourceId": j, "destId": i, "cost": costs[j]} for i in range(1, operators)
             for j in sorted(draw.sample(range(max(0, i - 9), i), min(i, 2)))]
    return {"maxFPGAs": 6, "maxCPUs": 0, "maxSizePerFPGA": 200, "nodes": nodes, "edges": edges}
