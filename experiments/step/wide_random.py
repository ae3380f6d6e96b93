"""Random small problems with choices, lanes, classes and jobs, alone and two at once, against brute force.

    python -m experiments.step.wide_random [--count 1000] [--seed 0] [--minutes 30]

Each assignment of the choices is solved by itself: by a walk through all that can happen in the wide problem itself
(:mod:`tests.oracles.wide`), where that is small enough; by dynamic programming over what has run in its rounds
(:mod:`tests.oracles.whole`), where there are no lanes; else by the plain search to its proof. Held against the least
of these: the search over assignments with its bound (equal, proven), the whole model (equal, where the problem is not
too large for it), and the bound of the relaxed problem (never more). Writes results/wide_random.json: counts by
extension, and what is unequal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from tests.oracles import wide
from tests.oracles.whole import TooLarge, least_makespan
from tests.oracles.wide import least_over_assignments
from tests.support.alternatives import drawn_alternatives, least_over
from tests.support.wide_problems import drawn_run, drawn_wide, keep_or_recompute
from weft.solver.choices.relaxed.bounds import bound_of
from weft.solver.choices.solve import solve_wide
from weft.solver.choices.whole_model import solve_whole
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.validate import violations
from weft.solver.schedule import RELATIVE_TOLERANCE
from weft.solver.step.search import Infeasible
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

EXTENSIONS = ("choices", "lanes", "classes", "jobs", *map("+".join, itertools.combinations(
    ("choices", "lanes", "classes", "jobs"), 2)))
#: Larger ones are drawn anew: operations of all assignments together, and what the oracle may look at.
_MOST_OPERATIONS, _MOST_LABELS = 80, 3000
#: Problems of so many operations at most, all alternatives counted, are walked through time step by time step.
_MOST_WALKED = 14


def drawn(extension: str, seed: int) -> tuple[WideProblem, Run]:
    """A small problem with this extension, or these two, and a run of it."""
    parts = extension.split("+")
    draw = random.Random(seed)
    with_ = {name: name in parts for name in ("classes", "jobs")}
    while True:
        number = draw.randrange(10**9)
        kind = draw.random()
        if "lanes" in parts or kind < 0.4:
            problem = drawn_alternatives(number, lanes="lanes" in parts, **with_)
        elif kind < 0.7 and not with_["jobs"]:
            problem = keep_or_recompute(number, classes=with_["classes"])
        else:
            problem = drawn_wide(number, **with_)
        run = drawn_run(problem, number)
        if "choices" not in parts:
            problem = problem.under({choice: draw.choice(options) for choice, options in problem.choices.items()})
            run = drawn_run(problem, number)
        size = sum(len(run.classes[block.job]) for options in problem.assignments
                   for block in problem.under(options).blocks)
        if size <= _MOST_OPERATIONS:
            return problem, run


def by_brute_force(problem: WideProblem, run: Run) -> tuple[float, str]:
    """The least makespan of all assignments, and how it was found."""
    if max(len(run.classes[block.job]) for block in problem.blocks) * len(problem.blocks) <= _MOST_WALKED and not any(
            wait.link is not None for block in problem.blocks for wait in block.after):
        try:
            least, _ = least_over_assignments(problem, run)
            return math.inf if least is None else float(least), "walk"
        except wide.TooLarge:
            pass
    if not any(device.lane_of for device in problem.devices):
        try:
            found = [least_makespan(Rounds(problem.under(options), run).problem, run.rounds, _MOST_LABELS)
                     for options in problem.assignments]
            return min((float(makespan) for makespan in found if makespan is not None), default=math.inf), "oracle"
        except TooLarge:
            pass
    return least_over(problem, run), "search"


def compared(extension: str, seed: int) -> dict[str, Any]:
    """One problem: what is unequal (``faults``), and how it went."""
    problem, run = drawn(extension, seed)
    best, how = by_brute_force(problem, run)
    faults = []
    bound = bound_of(problem, run, "makespan")
    if bound > best * (1 + RELATIVE_TOLERANCE):
        faults.append(f"the relaxed problem is bounded by {bound}, the best is {best}")
    try:
        found = solve_wide(problem, run, effort=5.0, time_limit=120.0)
        value, proven = found.makespan, found.gap == 0
        faults += [*violations(found), *violations_of_choice(found, problem)]
    except Infeasible:
        value, proven = math.inf, True
    if not _equal(value, best) or not proven:
        faults.append(f"the search found {value} (proven: {proven}), the best is {best}")
    whole = solve_whole(problem, run, Budget(60))
    if whole is not None and not _equal(whole.bound, best):
        faults.append(f"the whole model is bounded by {whole.bound}, the best is {best}")
    return {"extension": extension, "seed": seed, "brute_force": how, "assignments": problem.assignment_count,
            "infeasible": math.isinf(best), "whole_model": whole is not None,
            "looseness": None if math.isinf(best) else 1 - bound / best, "faults": list(map(str, faults))}


def _equal(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts by extension."""
    found = {}
    for extension in EXTENSIONS:
        of = [row for row in rows if row["extension"] == extension]
        loose = [row["looseness"] for row in of if row["looseness"] is not None]
        found[extension] = {
            "problems": len(of), "assignments": sum(row["assignments"] for row in of),
            "infeasible": sum(row["infeasible"] for row in of),
            "brute_force": dict(Counter(row["brute_force"] for row in of)),
            "whole_model": sum(row["whole_model"] for row in of), "unequal": sum(bool(row["faults"]) for row in of),
            "mean_looseness": round(sum(loose) / len(loose), 4) if loose else None}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "wide_random.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    until = time.monotonic() + 60 * options.minutes
    rows: list[dict[str, Any]] = []
    for number in range(options.count):
        if time.monotonic() > until:
            break
        rows.append(compared(EXTENSIONS[number % len(EXTENSIONS)], options.seed + number))
        if rows[-1]["faults"]:
            print(json.dumps(rows[-1]), flush=True)
    found = {"problems": len(rows), "unequal": [row for row in rows if row["faults"]], "by_extension": summary(rows)}
    print(json.dumps(found, indent=1))
    record.write(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
