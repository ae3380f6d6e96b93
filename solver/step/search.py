"""The search of a whole step: one phase after the other, each with what the ones before it have found.

Every schedule that improves on the best so far is timed, judged and reported before the search goes on, so whoever
stops it (a time limit, Ctrl-C) has a valid schedule with a proven bound. Nor does a fault in one of the phases take
that away: the phase ends, the others go on, and the result says so (``solver["stopped"]``). What is done in which
order: :mod:`weft.solver.step.phases`.

What an ablation of a step's search may leave out, by name: ``without`` of :func:`weft.solver.step.search.solve`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypedDict, Unpack

from weft.solver.control.garbage import seldom_collected
from weft.solver.control.stopping import breakable
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound, NoWholePeriod
from weft.solver.period.improvers.starts import STARTS
from weft.solver.period.registry import OPTIONAL as OF_PERIODS
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.phases import PHASES, kept, named
from weft.solver.step.phases.side_by_side import InTurn, SideBySide
from weft.solver.step.report import Progress
from weft.solver.step.state import MAX_OPERATIONS, State, is_large

__all__ = ["Infeasible", "Limits", "MAX_OPERATIONS", "NoneFound", "OF_CHOICES", "OPTIONAL", "Progress", "Search",
           "budget_of", "is_large", "solve"]


def solve(
    problem: Problem,
    micro_batches: int,
    *,
    objective: str = "makespan",
    start: Schedule | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **limits: Unpack[Limits],
) -> Schedule:
    """The best schedule found for ``micro_batches`` micro-batches of ``problem``, with a proven lower bound.

    ``objective`` says what is best: the least ``"makespan"``, the least ``"span"`` (how soon the next step can begin)
    or the least ``"rate"`` (time per micro-batch of the steady state): :mod:`weft.solver.step.goals`. The schedule's
    ``value`` and ``value_bound`` are of that.

    Of the ``limits`` ``time_limit`` is wall time in seconds (60). ``effort`` limits CP-SAT's deterministic time (about
    seconds) instead of leaving it to the clock: with it, a ``seed`` and one worker a run repeats exactly, as long as
    the time limit is not reached. Ctrl-C ends the search as the time limit does (and says ``interrupted`` in the
    result's ``solver``). ``without`` names techniques to leave out, for ablations
    (:data:`weft.solver.step.search.OPTIONAL`). ``start`` is a known valid schedule of the same problem to improve on.
    ``on_progress`` hears of every improvement.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` if it is proven that no schedule fits the devices'
    memory, its subclass ``NoneFound`` if that is open and none was found within the limit, and ``ValueError`` for
    numbers out of range, an unknown technique and an objective that means nothing for this problem.
    """
    budget = budget_of("solve", limits)
    search: Search | None = None
    try:
        with budget.limited(), breakable(), seldom_collected():
            search = Search(problem, micro_batches, budget, on_progress, start, objective)
            for _ in search.steps():
                pass
    except KeyboardInterrupt:
        budget.interrupted = True
        if search is None or search.best is None:
            raise
    assert search is not None  # what it starts with has no checkpoints
    search.require_value()
    return search.result()


class Limits(TypedDict, total=False):
    """What ends a search, what its random choices depend on, and what an ablation leaves out; see :func:`solve`."""

    time_limit: float
    effort: float | None
    seed: int
    workers: int
    without: Collection[str]


def budget_of(function: str, limits: Limits) -> Budget:
    """The budget of ``function`` by its ``limits``. Raises ``TypeError`` for an unknown one."""
    for name in limits.keys() - Limits.__annotations__.keys():
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    if without := frozenset(limits.get("without", ())):
        require_known(without)
    return Budget(without=without, seconds=limits.get("time_limit", 60.0), deterministic=limits.get("effort"),
                  seed=limits.get("seed", 0), workers=limits.get("workers", 1))


class Search(State):
    """One problem's search, a step at a time, so that several can share a :class:`~weft.solver.cpsat.budget.Budget`.

    Arguments and errors are those of :func:`solve`.
    """

    def steps(self) -> Iterator[None]:
        """The search; whoever iterates may stop after any step. Ends when the best is proven or ideas run out."""
        for name, phase in named(PHASES).items():
            if phase.due(self) and self.budget.without.isdisjoint((name, type(phase).__name__)):
                yield from kept(phase, self)

    @property
    def best(self) -> Schedule | None:
        """The best schedule so far; ``None`` before the first step."""
        return self.incumbent.best

    @property
    def makespan_bound(self) -> float:
        """The proven lower bound on the makespan so far, in the problem's time unit."""
        return self.proven.makespan

    @property
    def value(self) -> float:
        """The objective of the best schedule so far, in the problem's time unit; infinite without a schedule."""
        return float("inf") if self.best is None else self.best.value

    @property
    def value_bound(self) -> float:
        """The proven lower bound on that so far."""
        return self.proven.of(self.objective)

    def require_value(self, counted: str = "micro-batches") -> None:
        """Raise ``ValueError`` where there is a schedule and the objective means nothing for it, as it has no two
        micro-batches; and :class:`~weft.solver.feasibility.infeasible.NoneFound` where no steady state was found in it.
        ``counted``: what the problem's micro-batches are called, as rounds of several."""
        if self.best is None or self.best.value < float("inf"):
            return
        least = 2 if self.periods is None else self.periods.best.depth + 1
        few = f"{counted} ({self.micro_batches}): no whole period fits between warm-up and cool-down; give at least"
        if self.micro_batches == 1:
            raise ValueError(f"{self.problem.name}: the objective 'rate' means nothing for so few {few} {least}")
        if least <= self.micro_batches:
            raise NoneFound(f"{self.problem.name}: no steady state was found within the limit; give it more time")
        raise NoWholePeriod(f"{self.problem.name}: the best steady state found takes more {few} {least}, or more time")


#: Parts of the search over choices (:mod:`weft.solver.choices.tree`).
OF_CHOICES = ("first looks", "neighbours", "carried orders", "other options")

_BESIDE = tuple(phase for each in PHASES if isinstance(each, SideBySide) for phase, _ in each.phases)
_IN_TURN = tuple(phase for each in _BESIDE if isinstance(each, InTurn) for phase in each.phases)

#: All names. A phase's is that of its class, numbered where there are several; without the number all are left out.
#: Techniques of periods, known schedules as starts and parts of the search over choices have names of their own.
OPTIONAL: tuple[str, ...] = (
    *named(PHASES),
    *sorted({type(each).__name__ for each in (*PHASES, *_BESIDE, *_IN_TURN)} - set(named(PHASES))),
    *OF_PERIODS, *STARTS, *OF_CHOICES)

def require_known(names: Collection[str]) -> None:
    """Raise ``ValueError`` for an unknown name."""
    if unknown := set(names) - set(OPTIONAL):
        raise ValueError(f"no technique is called {', '.join(sorted(unknown))}; there are {', '.join(OPTIONAL)}")
