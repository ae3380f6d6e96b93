"""Solved problems on disk, so that an interrupted sweep resumes where it stopped and a repeated one costs nothing.

One file an entry, named by a hash of everything that determines the result: the block problems of every placement,
micro-batches, options of the search, and the code of the solver itself. An entry is used only if it is complete (by
checksum), has the same key, and the judge passes every schedule in it; any other counts as missing and is rebuilt.
Values that the judge cannot verify, such as a lower bound, rely on the checksum: it protects against corruption, not
against forgery.

The work of one point of a sweep: the input and the output of a worker. Both can be pickled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from weft.app.compare.run import known_schedules
from weft.app.lib.case import Case
from weft.app.lib.options import SearchOptions
from weft.app.solving.solve import solve_case
from weft.solver.baselines import BASELINES
from weft.solver.io.entries import FormatError
from weft.solver.io.kept import json_digest, read_kept, sources_digest, write_kept
from weft.solver.io.problem_files import problem_to_json
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json
from weft.solver.io.writing import cache_folder
from weft.solver.judge.claims import judge_claims
from weft.solver.judge.validate import violations
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible

CACHE_FORMAT = "weft.cache/1"
#: weft's own schedule among an entry's schedules; the others go by the names of the known schedules.
OWN = "weft"


def cache_of(choice: str | os.PathLike[str] | bool | None) -> Cache | None:
    """The cache chosen by the caller, in the folder of :func:`~weft.solver.io.writing.cache_folder`."""
    folder = cache_folder(choice)
    return None if folder is None else Cache(folder)


def key_of(case: Case, options: SearchOptions) -> str:
    """The hash of everything that determines the result of :func:`weft.app.sweep.cache.solve_point`."""
    return json_digest({
        "format": CACHE_FORMAT,
        "made_by": _makers(),
        "micro_batches": case.micro_batches,
        "options": options.settings,
        "refused": case.refused,
        "least_period": repr(case.least_period),
        "placements": [{"title": placement.title, "details": placement.details,
                        "problem": problem_to_json(placement.problem)}
                       for placement in (*case.placements, *case.whole_model)],
        "open": [{"title": placement.title, "details": placement.details,
                  "problem": problem_to_json(placement.problem)} for placement in case.open],
    })


class Cache:
    """A folder of solved problems, created when the first one is saved."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.folder / f"{key}.json"

    def load(self, key: str, case: Case) -> Solved | None:
        """The entry ``key`` (from :func:`key_of`) for ``case``, ``None`` if there is no trusted one."""
        values = read_kept(self.path(key), CACHE_FORMAT, key, "schedules")
        if values is None:
            return None
        try:
            schedules = {name: _trusted(value, case) for name, value in values.items()}
            if not all(name in BASELINES for name in schedules if name != OWN):
                return None
            return Solved(schedules.pop(OWN), schedules)
        except (ValueError, KeyError):  # FormatError, and invalid numbers
            return None

    def save(self, key: str, solved: Solved) -> None:
        """Save ``solved`` under ``key``. Raises ``OSError``; an existing file is then unchanged."""
        schedules = {name: schedule_to_json(schedule)
                     for name, schedule in ((OWN, solved.weft), *solved.known.items())}
        write_kept(self.path(key), CACHE_FORMAT, key, "schedules", schedules)


def _trusted(value: Any, case: Case) -> Schedule:
    """The schedule in ``value``. Raises ``FormatError`` unless it is a valid one of ``case``."""
    schedule = schedule_from_json(value)
    replicas = {1, *(placement.replicas for placement in case.whole_model)}  # each runs its share
    if schedule.micro_batches not in {case.micro_batches // count for count in replicas}:
        raise FormatError("cache: the schedule is for another number of micro-batches")
    if not _is_of(schedule, case):
        raise FormatError("cache: the schedule is for another problem")
    faults = [*violations(schedule, limit=1), *judge_claims(value, schedule).false]
    if faults:
        raise FormatError(f"cache: {faults[0]}")
    return schedule


def _is_of(schedule: Schedule, case: Case) -> bool:
    """Whether it belongs to one of the case's placements, or to an assignment of one with alternatives."""
    return any(schedule.problem == placement.whole for placement in (*case.placements, *case.whole_model)) or any(
        set(schedule.choices) == set(placement.problem.choices)
        and schedule.problem == placement.problem.under(schedule.choices).plain() for placement in case.open)


@cache
def _makers() -> Mapping[str, str]:
    """The code behind an entry: the sources of the solver and its callers, which also change between releases."""
    weft = Path(__file__).parents[2]
    app = weft / "app"
    rooms = (weft / "solver", app / "lib", app / "solving", app / "compare")
    sources = [*(source for room in rooms for source in sorted(room.rglob("*.py"))), Path(__file__)]
    return {"sources": sources_digest(sources), "ortools": metadata.version("ortools")}


#: The share of a point's time for weft's own search; known schedules have the rest.
_OWN_SHARE = 0.8


@dataclass(frozen=True)
class Solved:
    """weft's schedule of a case, and the known schedules that fit, by name."""

    weft: Schedule
    known: Mapping[str, Schedule] = field(default_factory=dict)


def solve_point(case: Case, options: SearchOptions, seconds_used: float = 0.0) -> Solved | str:
    """Solve ``case``, or return the reason why no schedule fits. Runs on any worker with weft; the time limit starts
    now, less ``seconds_used`` for making the case.

    Raises ``KeyboardInterrupt`` if Ctrl-C reached the search: a partial result does not count for this point.
    """
    options = options.restarted(seconds_used)
    try:
        own = solve_case(case, options.shortened(_OWN_SHARE))
    except Infeasible as refusal:
        return str(refusal)
    if own.solver.get("interrupted"):
        raise KeyboardInterrupt
    known, _ = known_schedules(case, options.budget(), 1.0)
    return Solved(own, {name: schedule for name, schedule in known.items() if not violations(schedule, limit=1)})
