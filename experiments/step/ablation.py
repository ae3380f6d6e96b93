"""What does each technique bring? The same search with and without it, with the same effort.

    python -m experiments.step.ablation [--effort 1.5] [--every 24] [--only TEXT] [--parts NAME ...] [--processes 2]
    python -m experiments.step.ablation --period [...]

Problems: every so many-th of the suites of :mod:`experiments.lib.generated` (2 to 8 devices, tight to unlimited memory,
equal and unequal stages, five shapes) and :mod:`experiments.lib.extended` (choices, lanes, jobs, classes), the large
ones of :mod:`experiments.period.scale` (8 to 128 devices), and streams over lanes (:mod:`experiments.step.streams`).
Each is solved with everything, and then without one technique after the other of
:data:`weft.solver.step.search.OPTIONAL`. Published schedules that no search makes are left out together (``fixed
starts``). An effort makes runs repeat, so a technique without influence changes nothing; one that the whole search
never asked about is not run again. CPU seconds are recorded beside it.

For each technique the summary says on how many problems the answer is longer or shorter without it, how bounds compare,
how many more are proven, and how much later the search ends. Writes ablation.json, row by row. With ``--period`` the
same of the search for the shortest period alone, from one micro-batch at a time, of plain problems: "makespan" is the
period then. Writes ablation_period.json.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from experiments.lib.extended import extended, widened
from experiments.lib.generated import problem, suite
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from experiments.period import scale
from experiments.step.annealer import searched
from tests.oracles.streams import drawn_stream
from weft.app.lib.placements import SEARCHES
from weft.solver.baselines import NotApplicable
from weft.solver.choices.report import result_of
from weft.solver.choices.solve import tree_of
from weft.solver.control.parallel import mapped
from weft.solver.cpsat.budget import Budget
from weft.solver.period.improvers.starts import STARTS, one_at_a_time
from weft.solver.period.registry import OPTIONAL as OF_PERIODS
from weft.solver.period.search import find_period
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Run
from weft.solver.step.search import OF_CHOICES, OPTIONAL, Infeasible
from weft.solver.ticks import TickProblem

_FIXED = "fixed starts"
#: A search without its first schedules has none to begin with; phases that come again, or side by side, are left out
#: one by one.
_NOT_ALONE = {"AtOnce", "FirstSchedule", "SideBySide", "Whole", "States"}
#: What is left out in turn, by the names in the record.
PARTS: dict[str, frozenset[str]] = {
    **{name: frozenset({name}) for name in OPTIONAL
       if name not in _NOT_ALONE and (name not in STARTS or name in SEARCHES)},
    _FIXED: frozenset(set(STARTS) - set(SEARCHES))}
#: Large problems: shape, devices, split backward, memory as a multiple of the least.
LARGE = [("V", 8, True, 1.25), ("V", 16, False, 1.5), ("V", 32, True, 1.0), ("M", 8, True, 1.5), ("NN", 8, True, 1.5),
         ("NN", 16, False, 1.25), ("K", 8, True, 1.25), ("V2", 8, False, 1.5), ("V2", 8, True, 1.25),
         ("V2", 32, False, 1.25), ("loop2", 8, True, 1.25), ("loop2", 16, False, 1.5), ("loop2", 32, True, 2.0),
         ("V", 128, False, 1.25)]


@dataclass(frozen=True)
class Drawn:
    """A problem by its name and family; ``run`` is a number of micro-batches of a plain one."""

    name: str
    family: str
    problem: Problem
    run: Run | int


class Asked(frozenset[str]):
    """Names to leave out that keep in ``names`` which ones a search asked about: without another it is the same."""

    names: set[str]

    def __new__(cls, left_out: Iterable[str] = (), names: set[str] | None = None) -> Asked:
        made = super().__new__(cls, left_out)
        made.names = set() if names is None else names
        return made

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def isdisjoint(self, names: Iterable[object]) -> bool:
        return not any([name in self for name in names])

    def union(self, *others: Iterable[object]) -> Asked:
        return Asked(super().union(*others), self.names)  # type: ignore[arg-type]


def drawn(every: int, seed: int) -> Iterator[Drawn]:
    """All of them."""
    for chunks, slots in ((3, 2), (5, 3), (6, 2), (8, 4)):
        yield Drawn(f"stream of {chunks} x {chunks} chunks, {slots} slots", "stream",
                    drawn_stream(chunks, slots, seed), 1)
    for each in suite(540, seed)[::every]:
        case, count = problem(each)
        yield Drawn(case.name, "suite", case, count)
    for wide in extended(460, seed)[::every]:
        with_more, run = widened(wide)
        yield Drawn(with_more.name, "wide", with_more, run)
    for shape, devices, split, cap in LARGE:
        large = scale.problem(shape, devices, split, cap, seed)
        yield Drawn(large.name, "large", large, 2 * devices if devices <= 32 else devices)


def _searched(case: Drawn, budget: Budget) -> tuple[float, float]:
    """The makespan, and its bound."""
    if isinstance(case.run, Run):
        tree = tree_of(case.problem, case.run, budget)
        with budget.limited():
            tree.run()
        found = result_of(tree, case.problem)
    else:
        found = searched(case.problem, case.run, budget)
    return found.makespan, found.makespan_bound


def _period(case: Drawn, budget: Budget) -> tuple[float, float]:
    """The shortest period found, and the longest that is refuted."""
    instance = TickProblem.of(case.problem)
    with budget.limited():
        bracket = find_period(instance, one_at_a_time(instance), budget)
    return float(bracket.best.period), float(bracket.refuted)


def measured(case: Drawn, effort: float, without: frozenset[str], period: bool) -> Row:
    """The makespan or period, its bound, and the CPU seconds that the search took."""
    budget = Budget(deterministic=effort, now=time.process_time, without=without)
    value: float | None = None
    bound: float | None = None
    with suppress(Infeasible, NotApplicable):
        value, bound = (_period if period else _searched)(case, budget)
    return {"makespan": value, "bound": bound, "seconds": round(budget.elapsed, 3)}


def compared(case: Drawn, effort: float, parts: Sequence[str], period: bool) -> Row:
    """One problem: the whole search, and without each of ``parts``."""
    asked = Asked()
    runs = {"whole": measured(case, effort, asked, period)}
    for name in parts:
        if name not in OF_CHOICES or isinstance(case.run, Run):
            came = not asked.names.isdisjoint(PARTS[name])
            runs[name] = measured(case, effort, PARTS[name], period) if came else runs["whole"]
    return {"name": case.name, "family": case.family, "runs": runs}


def summed_up(rows: Sequence[Row]) -> Row:
    """By technique: what the answers, bounds and times are without it, each beside the whole search's."""
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row["runs"] if name != "whole"):
        pairs = [(row["runs"]["whole"], row["runs"][name]) for row in rows if name in row["runs"]]
        there = [(whole, other) for whole, other in pairs if whole["makespan"] and other["makespan"]]
        answers = [other["makespan"] / whole["makespan"] for whole, other in there]
        bounds = [other["bound"] / whole["bound"] for whole, other in there]
        found[name] = {
            "problems": len(pairs), "none found": sum(whole["makespan"] is not None and other["makespan"] is None
                                                      for whole, other in pairs),
            "longer": sum(r > 1 + 1e-9 for r in answers), "shorter": sum(r < 1 - 1e-9 for r in answers),
            "answer": _mean(answers), "longest": round(max(answers, default=1.0), 4),
            "shortest": round(min(answers, default=1.0), 4),
            "bound": _mean(bounds), "lowest bound": round(min(bounds, default=1.0), 4),
            "proven": sum(_proven(other) for _, other in there) - sum(_proven(whole) for whole, _ in there),
            "seconds": round(sum(other["seconds"] for _, other in pairs), 1),
            "of the whole search": round(sum(whole["seconds"] for whole, _ in pairs), 1)}
    return {"summary": found}


def _mean(ratios: Sequence[float]) -> float:
    return round(statistics.fmean(ratios), 5) if ratios else 1.0


def _proven(run: Row) -> bool:
    return bool(run["makespan"] <= run["bound"] * (1 + 1e-9))


@script(lambda asked: f"ablation{'_period' * asked.period}.json", effort=1.5, every=24, only="", parts=list(PARTS),
        seed=1, processes=1, period=False)
def main(options: Namespace, record: Record) -> None:
    chosen = [case for case in drawn(options.every, options.seed) if options.only in case.name + " " + case.family
              and not (options.period and isinstance(case.run, Run))]
    parts = [name for name in options.parts if not options.period or name in OF_PERIODS]
    one: Callable[[Drawn], Row] = partial(compared, effort=options.effort, parts=parts, period=options.period)
    record.rows(mapped(one, chosen, options.processes), summed_up, effort=options.effort, seed=options.seed)
