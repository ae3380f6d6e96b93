"""The best order of micro-batches that differ, and the best schedule of it, with a bound over all orders.

*Incumbents first.* Sequences by rule (:mod:`weft.solver.choices.sequences.rules`) get list schedules; the best is
where a climb over sequences and orders begins, and what that ends with is searched for a while.
*Then the tree* of sequences with open places (:mod:`weft.solver.choices.tree`): best first, so its least bound is one
on every sequence; small problems end with a proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Unpack

from weft.solver.choices.report import result_of
from weft.solver.choices.sequences.first_schedules import Found, cycles, listed
from weft.solver.choices.sequences.node import Roots, SequenceNode, SequenceProblem, rounds_of
from weft.solver.choices.sequences.partial import Sequence as ClassSequence
from weft.solver.choices.sequences.partial import any_sequences, counts_of, given_sequences
from weft.solver.choices.sequences.rules import sequences_by_rule
from weft.solver.choices.tree import Tree
from weft.solver.control.clock import checkpoint, unwatched
from weft.solver.cpsat.budget import Budget
from weft.solver.orders.climb import Decided
from weft.solver.problem import ProblemError
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Limits, Progress, budget_of
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Counted, Run

__all__ = ["first_orders", "solve_sequence"]

#: Assignments of a problem's choices, each with an order of its own to be found.
_MOST_ASSIGNMENTS = 64
#: Of the time left: for rules and for changes of a sequence, and then for the search of the best one.
_RULES, _CHANGES, _SEARCH = 0.25, 0.25, 0.35
#: Divisions among classes, those of the least bound first, whose rules are tried.
_DIVISIONS = 24
#: List schedules of a first look at a sequence.
_QUICK = 2


def solve_sequence(
    problem: WideProblem,
    micro_batches: Run | Counted | Mapping[str, Counted],
    *,
    any_class: bool = False,
    start: Found | None = None,
    objective: str = "makespan",
    on_progress: Callable[[Progress], None] = lambda _: None,
    **limits: Unpack[Limits],
) -> Schedule:
    """The best schedule found over all orders of the ``micro_batches`` given, with a lower bound proven over all.

    ``micro_batches``: a run, or what makes one. With ``any_class`` it is how many there are (of each job), and the
    search decides of which class each is. ``start`` is a known sequence with its schedule.
    ``limits`` are those of :func:`weft.solver.step.search.solve`. Where the
    problem has open choices, they are decided too. The schedule's ``rounds`` say the class of each micro-batch;
    ``solver["sequence"]`` holds them, how many sequences there are (``None`` where that was not counted), and whether
    their classes were open.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` if it is proven that nothing fits the devices'
    memory, its subclass ``NoneFound`` where that is open, :class:`~weft.solver.problem.ProblemError` for a run that
    means nothing, and ``ValueError`` for another objective than the makespan and for too many assignments.
    """
    budget = budget_of("solve_sequence", limits)
    if objective != "makespan":
        what = "class of each micro-batch" if any_class else "order of micro-batches"
        raise ValueError(f"{problem.name}: the {what} is searched for the least makespan, not for the "
                         f"objective {objective!r}; give it")
    if problem.assignment_count > _MOST_ASSIGNMENTS:
        raise ValueError(f"{problem.name}: the choices have {problem.assignment_count} assignments, too many to search "
                         f"the order of micro-batches for each (at most {_MOST_ASSIGNMENTS}); give the order")
    roots = _roots(problem, micro_batches, any_class=any_class)
    given = None if any_class else _run_of(problem, micro_batches)
    with unwatched():
        tree = _SequenceTree(roots, budget, objective, on_progress, given)
    if start is not None:
        tree.found = roots[0], start
    with budget.kept(lambda: tree.leader is not None or tree.found is not None):
        tree.run()
    unfinished = tree.unfinished
    best = result_of(tree, problem) if unfinished is None else _as_found(tree, *unfinished)
    return _labelled(best, roots, any_class=any_class)


def _roots(problem: WideProblem, micro_batches: Run | Counted | Mapping[str, Counted], *, any_class: bool
           ) -> list[SequenceNode]:
    """A root for each assignment, and for each division of the micro-batches among the classes."""
    roots = []
    counts = counts_of(problem, _numbers(micro_batches)) if any_class else {}
    for options in problem.assignments:
        wide = problem.under(options)
        of = SequenceProblem(wide, options)
        if any_class:
            partials = any_sequences(wide, {job: counts[job] for job in wide.jobs or (None,)})
        else:
            partials = [given_sequences(_run_of(problem, micro_batches).within(wide))]
        roots += [SequenceNode(of, partial) for partial in partials]
    return roots


def _run_of(problem: WideProblem, micro_batches: Run | Counted | Mapping[str, Counted]) -> Run:
    return micro_batches if isinstance(micro_batches, Run) else Run.of(problem, micro_batches)


def _numbers(micro_batches: Run | Counted | Mapping[str, Counted]) -> int | Mapping[str, int]:
    """How many micro-batches there are."""
    if isinstance(micro_batches, Run):
        counts = {job: len(row) for job, row in micro_batches.classes.items()}
        return counts[None] if set(counts) == {None} else {str(job): count for job, count in counts.items()}
    entries = micro_batches.values() if isinstance(micro_batches, Mapping) else [micro_batches]
    for entry in entries:
        if not isinstance(entry, int):
            raise ProblemError("micro_batches lists classes, but each may be of any: give how many there are")
    return micro_batches  # type: ignore[return-value]


def _as_found(tree: _SequenceTree, root: SequenceNode, found: Found) -> Schedule:
    """A schedule that there was no time to search on, with the bound over all sequences."""
    with unwatched():
        rounds = rounds_of(root.of.wide, found.sequence)
        bound = max(tree.bound, min(node.bound for node in tree.roots))
    budget = tree.budget
    return replace(found.schedule, makespan_bound=min(bound, found.schedule.makespan),
                   choices=dict(root.of.options), rounds=None if rounds.is_plain else rounds).with_solver(
        name="weft", seconds=round(budget.elapsed, 3), seed=budget.seed, workers=budget.workers,
        deterministic_seconds=round(budget.deterministic_used, 3),
        **({"interrupted": True} if budget.interrupted else {}))


def _labelled(best: Schedule, roots: list[SequenceNode], *, any_class: bool) -> Schedule:
    taken = None if best.rounds is None else best.rounds.run.to_json()
    count = None if any_class else sum(root.partial.count for root in roots)
    return best.with_solver(sequence={"taken": taken, "sequences": count, "any_class": any_class})


def first_orders(root: SequenceNode, best: Found | None = None, given: ClassSequence | None = None) -> Iterator[Found]:
    """Schedules that fit of the sequence ``given`` and of those by rule below ``root``, DynaPipe's cycles and list
    schedules: each shorter than ``best`` and all before. Ends where none can be."""
    named = [] if given is None else [given]
    for sequence in chain(named, (sequence for _, sequence in sequences_by_rule(root.of.costs, root.partial))):
        checkpoint()
        leaf = root.at(sequence)
        least = math.inf if best is None else best.schedule.makespan * (1 - RELATIVE_TOLERANCE)
        if root.bound >= least:
            return
        if leaf.bound >= least:
            continue
        rounds = leaf.rounds()
        made = [schedule for schedule in (cycles(rounds), listed(rounds)) if schedule is not None]
        shortest = min(made, key=lambda schedule: schedule.makespan, default=None)
        if shortest is not None and shortest.makespan < least:
            best = Found(sequence, shortest)
            yield best


class _SequenceTree(Tree):
    """The tree, with incumbents before it: from the order of the run ``given``, if one is, and from rules."""

    def __init__(self, roots: list[SequenceNode], budget: Budget, objective: str,
                 on_progress: Callable[[Progress], None], given: Run | None = None) -> None:
        self.roots = roots
        self.given = given
        self.found: tuple[SequenceNode, Found] | None = None
        super().__init__(roots[0] if len(roots) == 1 else Roots(roots), budget, objective, on_progress)

    def _dive(self) -> None:
        """The best sequence by rule, a climb from there, and the search of what that ends with for a while, twice; any
        leaf where none fits."""
        found = self._by_rule()
        if found is None:
            super()._dive()
            return
        root, best = found
        shown = replace(best.schedule, rounds=rounds_of(root.of.wide, best.sequence))
        self.tell(Progress(shown, self.budget.elapsed, "sequences"))
        self._climb.keep(Decided(self._leaves.at(root.at(best.sequence)), best.schedule))
        for share in (_SEARCH, _SEARCH / 2):
            if self.budget.spent or self.bound >= self._beaten:
                return
            self._climb_on(self.budget.share(_CHANGES))
            if self.leader is not None and self.leader.open and not self.leader.proven and self.bound < self._beaten:
                self.go_on(self.leader, self.budget.share(share))

    def _by_rule(self) -> tuple[SequenceNode, Found] | None:
        """The sequence with the shortest known schedule, and the root above it: a quick one of each division first."""
        with unwatched():  # one there is in any case
            for root in self.roots[:1]:
                sequence = self._given(root) or next(sequence for _, sequence in sequences_by_rule(root.of.costs,
                                                                                                   root.partial))
                self._keep(root, sequence, listed(rounds_of(root.of.wide, sequence), _QUICK))
        with self.budget.limited(_RULES):
            ranked = sorted(self.roots, key=lambda node: node.bound)[:_DIVISIONS]
            for root in ranked if len(ranked) > 1 else ():
                for _, sequence in islice(sequences_by_rule(root.of.costs, root.partial), 2):
                    self._keep(root, sequence, listed(rounds_of(root.of.wide, sequence), _QUICK))
            for root in ranked:
                for found in first_orders(root, None if self.found is None else self.found[1], self._given(root)):
                    self.found = root, found
        return self.found

    def _given(self, root: SequenceNode) -> ClassSequence | None:
        """The order given, as far as the options of ``root`` leave its jobs and classes."""
        return None if self.given is None else self.given.within(root.of.wide).classes

    def _keep(self, root: SequenceNode, sequence: ClassSequence, made: Schedule | None) -> None:
        """Remember a schedule that is shorter than the best known one."""
        if made is not None and (self.found is None or made.makespan < self.found[1].schedule.makespan):
            self.found = root, Found(sequence, made)

    @property
    def unfinished(self) -> tuple[SequenceNode, Found] | None:
        """What was found and is better than all that was searched on: time was over before."""
        if self.found is None or self.found[1].schedule.makespan >= self.best * (1 - RELATIVE_TOLERANCE):
            return None
        return self.found
