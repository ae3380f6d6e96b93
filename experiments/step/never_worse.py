"""Weft against every known schedule: is it ever worse, how often better, and how near to its bound?

    python -m experiments.step.never_worse [--family suite] [--every K] [--count N] [--effort SECONDS]

Families of problems: ``suite``, 540 plain ones (:mod:`experiments.lib.generated`); ``wide``, 460 with choices, lanes,
jobs and classes (:mod:`experiments.lib.extended`); ``costs`` and ``shapes``, those that published schedules are made
for (:mod:`experiments.lib.known_problems`). A known schedule counts where the judge passes it, memory included. On
choices it gets each assignment, of more than 16 those that take the first option of each, the second ...; on jobs and
classes the stand-ins that serve it best. Weft's search starts from these schedules, so "never worse" checks the engine,
and the gain says what the search adds. Writes the file of its family; exits with 1 where weft is worse or fails.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from experiments.lib.extended import extended, widened
from experiments.lib.generated import problem, suite
from experiments.lib.known_problems import costs, shapes
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.baselines.on_rounds import known_on_rounds
from weft.solver.choices.partial import first_looks
from weft.solver.choices.solve import solve_run
from weft.solver.control.parallel import mapped
from weft.solver.judge.validate import validate, violations
from weft.solver.problem import Problem, ProblemError
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Infeasible, solve

#: Of the clock, for each search: all end by their effort before.
_LIMIT = 3600.0


@dataclass(frozen=True)
class Drawn:
    """A problem, what runs of it, and what it is grouped by."""

    problem: Problem
    run: int | Run
    family: Mapping[str, Any]


def _suite() -> Iterator[Drawn]:
    for each in suite(540, 0):
        yield Drawn(*problem(each), {**each.family, "seed": each.seed})


def _wide() -> Iterator[Drawn]:
    for each in extended(460, 0):
        yield Drawn(*widened(each), {**each.family, "seed": each.plain.seed})


#: By name: the problems, deterministic seconds of each search, and the file.
FAMILIES: dict[str, tuple[Callable[[], Iterator[Drawn]], float, str]] = {
    "suite": (_suite, 1.0, "never_worse/suite.json"), "wide": (_wide, 0.5, "never_worse_wide.json"),
    "costs": (lambda: (Drawn(*each) for each in costs()), 0.5, "published_costs.json"),
    "shapes": (lambda: (Drawn(*each) for each in shapes()), 0.3, "rivals.json")}


def known(case: Drawn) -> Iterator[tuple[str, Schedule]]:
    """Every known schedule that is made for the problem, whether it fits or not."""
    if isinstance(case.run, Run):
        for options in first_looks(case.problem):
            try:
                yield from known_on_rounds(Rounds(case.problem.under(options), case.run)).items()
            except ProblemError:  # no problem under these options
                continue
        return
    for name in BASELINES:
        try:
            yield name, baseline(name, case.problem, case.run)
        except NotApplicable:
            continue


def compared(case: Drawn, effort: float) -> Row:
    """One problem: weft's makespan and bound, and the makespans of all known schedules that fit."""
    rivals: dict[str, float] = {}
    row: Row = {"name": case.problem.name, **case.family, "rivals": rivals}
    try:
        for name, schedule in known(case):
            if schedule.makespan < rivals.get(name, float("inf")) and not violations(schedule, limit=1):
                rivals[name] = schedule.makespan
        began = time.process_time()
        if isinstance(case.run, Run):
            own = solve_run(case.problem, case.run, time_limit=_LIMIT, effort=effort)
        else:
            own = solve(case.problem, case.run, time_limit=_LIMIT, effort=effort)
        validate(own)
    except Infeasible as refusal:
        return {**row, "weft": None, "infeasible": str(refusal)}
    except Exception as error:  # whatever goes wrong belongs in the tally, and the rest goes on
        return {**row, "weft": None, "error": f"{type(error).__name__}: {error}"}
    return {**row, "weft": own.makespan, "bound": own.makespan_bound, "proven": own.gap == 0,
            "seconds": round(time.process_time() - began, 2)}


def is_bad(row: Mapping[str, Any]) -> bool:
    """Whether weft failed, or a known schedule is faster or there where weft says that none is."""
    best = min(row["rivals"].values(), default=None)
    if row["weft"] is None:
        return "error" in row or best is not None
    return best is not None and row["weft"] > best * (1 + RELATIVE_TOLERANCE)


@script(lambda asked: FAMILIES[asked.family][2], family="suite", every=1, count=int, effort=float, processes=2)
def main(options: Namespace, record: Record) -> bool:
    problems, effort, _ = FAMILIES[options.family]
    effort = options.effort or effort
    one: Callable[[Drawn], Row] = partial(compared, effort=effort)
    chosen = [*islice(islice(problems(), 0, None, options.every), options.count)]
    return any(map(is_bad, record.rows(mapped(one, chosen, options.processes), effort=effort)))
