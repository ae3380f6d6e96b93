"""The best order of unequal micro-batches, and the best schedule of it, with a bound over all orders.

*Incumbents first.* Sequences by rule get list schedules; from the best a climb over sequences and orders begins, and
its result is searched for a while. *Then the tree* of sequences with open places (:mod:`weft.solver.choices.tree`):
best first, so its least bound is one on every sequence; small problems end with a proof.

The search starts from orders of classes that are known or likely to be good.

A hill (the shortest at both ends, where devices wait for the first and for the last) and a valley; classes spread
evenly; the shortest first; the longest first; Johnson's rule for two machines in a row ("Optimal two- and three-stage
production schedules", 1954), the first and the last device of a micro-batch; and the injections that DynaPipe tries
(:func:`weft.solver.baselines.dynapipe.injections`).

First schedules of a sequence: list schedules and cycles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TypeAlias, Unpack

from weft.solver.baselines import NotApplicable
from weft.solver.baselines.dynapipe import injections
from weft.solver.baselines.on_rounds import baseline_on_rounds
from weft.solver.baselines.rivals.round_list import RoundList
from weft.solver.choices.decision import scheduled
from weft.solver.choices.report import result_of
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.node import Roots, SequenceNode, SequenceProblem, rounds_of
from weft.solver.choices.sequences.partial import Sequence as ClassSequence
from weft.solver.choices.sequences.partial import Sequences, any_sequences, given_sequences
from weft.solver.choices.tree import Tree
from weft.solver.control.clock import checkpoint, unwatched
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import violations
from weft.solver.orders.climb import Decided
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Limits, Progress, budget_of

#: The most assignments of a problem's choices, each with its own order to be found.
_MOST_ASSIGNMENTS = 64
#: Shares of the time left: for rules, for changes of a sequence, and then for the search of the best one.
_RULES, _CHANGES, _SEARCH = 0.25, 0.25, 0.35
#: Divisions among classes, those of the least bound first, whose rules are tried.
_DIVISIONS = 24
#: The number of divisions among classes, those of the least bound first, whose rules are tried.
_QUICK = 2


def solve_sequence(
    problem: Problem,
    run: Run,
    *,
    any_class: bool = False,
    start: Fitting | None = None,
    objective: str = "makespan",
    on_progress: Callable[[Progress], None] = lambda _: None,
    **limits: Unpack[Limits],
) -> Schedule:
    """The best schedule found over all orders of the micro-batches of ``run``, with a lower bound proven over all.

    With ``any_class`` the run says their number (of each job), and the search decides the class of each. ``start`` is a
    known sequence with its schedule. ``limits`` are those of :func:`weft.solver.step.search.solve`. If the problem has
    open choices, they are decided too. The schedule's ``rounds`` have the class of each micro-batch;
    ``solver["sequence"]`` has them too, with the number of sequences (``None`` if it was not counted), and whether
    their classes were open.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` if it is proven that nothing fits the devices'
    memory, its subclass ``NoneFound`` if that is open, :class:`~weft.solver.problem.ProblemError` for an invalid run,
    and ``ValueError`` for another objective than the makespan and for too many assignments.
    """
    budget = budget_of("solve_sequence", limits)
    if objective != "makespan":
        what = "class of each micro-batch" if any_class else "order of micro-batches"
        raise ValueError(f"{problem.name}: the {what} is searched for the least makespan, not for the "
                         f"objective {objective!r}; give it")
    if problem.assignment_count > _MOST_ASSIGNMENTS:
        raise ValueError(f"{problem.name}: the choices have {problem.assignment_count} assignments, too many to search "
                         f"the order of micro-batches for each (at most {_MOST_ASSIGNMENTS}); give the order")
    roots = _roots(problem, run, any_class=any_class)
    with unwatched():
        tree = _SequenceTree(roots, budget, objective, on_progress, None if any_class else run)
    if start is not None:
        tree.found = roots[0], start
    with budget.kept(lambda: tree.leader is not None or tree.found is not None):
        tree.run()
    unfinished = tree.unfinished
    best = result_of(tree, problem) if unfinished is None else _as_found(tree, *unfinished)
    return _labelled(best, roots, any_class=any_class)


def _roots(problem: Problem, run: Run, *, any_class: bool) -> list[SequenceNode]:
    """A root for each assignment, and for each division of the micro-batches among the classes."""
    roots = []
    for options in problem.assignments:
        left = problem.under(options)
        of = SequenceProblem(left, options)
        partials = any_sequences(left, {job: len(run.classes[job]) for job in left.jobs or (None,)}
                                 ) if any_class else [given_sequences(run.within(left))]
        roots += [SequenceNode(of, partial) for partial in partials]
    return roots


def _as_found(tree: _SequenceTree, root: SequenceNode, found: Fitting) -> Schedule:
    """A schedule that was not searched further for lack of time, with the bound over all sequences."""
    with unwatched():
        rounds = rounds_of(root.of.problem, found.sequence)
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


def first_orders(root: SequenceNode, best: Fitting | None = None, given: ClassSequence | None = None
                 ) -> Iterator[Fitting]:
    """Schedules that fit of the sequence ``given`` and of those by rule below ``root``, DynaPipe's cycles and list
    schedules: each shorter than ``best`` and all before. Ends when none can be."""
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
            best = Fitting(sequence, shortest)
            yield best


class _SequenceTree(Tree):
    """The tree, with incumbents before it: from the order of the run ``given``, if one is, and from rules."""

    def __init__(self, roots: list[SequenceNode], budget: Budget, objective: str,
                 on_progress: Callable[[Progress], None], given: Run | None = None) -> None:
        self.roots = roots
        self.given = given
        self.found: tuple[SequenceNode, Fitting] | None = None
        super().__init__(roots[0] if len(roots) == 1 else Roots(roots), budget, objective, on_progress)

    def _dive(self) -> None:
        """The best sequence by rule, a climb from there, and the search of its result for a while, twice; any leaf if
        none fits."""
        found = self._by_rule()
        if found is None:
            super()._dive()
            return
        root, best = found
        shown = replace(best.schedule, rounds=rounds_of(root.of.problem, best.sequence))
        self.tell(Progress(shown, self.budget.elapsed, "sequences"))
        self._climb.keep(Decided(self._leaves.at(root.at(best.sequence)), best.schedule))
        for share in (_SEARCH, _SEARCH / 2):
            if self.budget.spent or self.bound >= self._beaten:
                return
            self._climb_on(self.budget.share(_CHANGES))
            if self.leader is not None and self.leader.open and not self.leader.proven and self.bound < self._beaten:
                self.go_on(self.leader, self.budget.share(share))

    def _by_rule(self) -> tuple[SequenceNode, Fitting] | None:
        """The sequence with the shortest known schedule, and the root above it: a quick one of each division first."""
        with unwatched():  # one there is in any case
            for root in self.roots[:1]:
                sequence = self._given(root) or next(sequence for _, sequence in sequences_by_rule(root.of.costs,
                                                                                                   root.partial))
                self._keep(root, sequence, listed(rounds_of(root.of.problem, sequence), _QUICK))
        with self.budget.limited(_RULES):
            ranked = sorted(self.roots, key=lambda node: node.bound)[:_DIVISIONS]
            for root in ranked if len(ranked) > 1 else ():
                for _, sequence in islice(sequences_by_rule(root.of.costs, root.partial), 2):
                    self._keep(root, sequence, listed(rounds_of(root.of.problem, sequence), _QUICK))
            for root in ranked:
                for found in first_orders(root, None if self.found is None else self.found[1], self._given(root)):
                    self.found = root, found
        return self.found

    def _given(self, root: SequenceNode) -> ClassSequence | None:
        """The order given, as far as the options of ``root`` leave its jobs and classes."""
        return None if self.given is None else self.given.within(root.of.problem).classes

    def _keep(self, root: SequenceNode, sequence: ClassSequence, made: Schedule | None) -> None:
        """Keep a schedule that is shorter than the best known one."""
        if made is not None and (self.found is None or made.makespan < self.found[1].schedule.makespan):
            self.found = root, Fitting(sequence, made)

    @property
    def unfinished(self) -> tuple[SequenceNode, Fitting] | None:
        """The best found, if it is better than all that was searched further: time was over before."""
        if self.found is None or self.found[1].schedule.makespan >= self.best * (1 - RELATIVE_TOLERANCE):
            return None
        return self.found


_Row: TypeAlias = tuple[str | None, ...]


def sequences_by_rule(costs: Costs, root: Sequences) -> Iterator[tuple[str, ClassSequence]]:
    """Sequences of the counts that ``root`` leaves, each with the rule's name; all jobs by one rule, none twice."""
    by_job = {}
    for job, part in root.jobs.items():
        row = [name for name, count in zip(part.names, part.left, strict=True) for _ in range(count)][:part.open]
        by_job[job] = dict(_rules(row, [costs.work(job, name) for name in row], *_ends(costs, job, row)))
    seen: set[tuple[_Row, ...]] = set()
    for name in dict.fromkeys(name for found in by_job.values() for name in found):
        sequence = {job: found.get(name, found["shortest first"]) for job, found in by_job.items()}
        if tuple(sequence.values()) not in seen:
            seen.add(tuple(sequence.values()))
            yield name, sequence


def _ends(costs: Costs, job: str | None, row: Sequence[str | None]) -> tuple[list[float], list[float]]:
    """The time of each micro-batch on the first device that it meets, and on the last."""
    blocks = [block for block in costs.problem.blocks if block.job == job]
    first = blocks[0].devices[0]
    last = next((block.devices[0] for block in reversed(blocks) if block.devices[0] != first), first)
    return tuple([float(sum(block.of_class(name).duration for block in blocks if device in block.devices))
                  for name in row] for device in (first, last))  # type: ignore[return-value]


def _rules(row: Sequence[str | None], work: Sequence[float], first: Sequence[float], last: Sequence[float]
           ) -> Iterator[tuple[str, _Row]]:
    places = sorted(range(len(row)), key=lambda m: work[m])

    def of(order: Sequence[int]) -> _Row:
        return tuple(row[m] for m in order)

    yield "hill", of([*places[::2], *places[1::2][::-1]])
    yield "spread", _spread(row)
    yield "shortest first", of(places)
    yield "longest first", of(places[::-1])
    yield "valley", of([*places[::-1][::2], *places[::-1][1::2][::-1]])
    early = sorted((m for m in places if first[m] < last[m]), key=lambda m: first[m])
    late = sorted((m for m in places if first[m] >= last[m]), key=lambda m: -last[m])
    yield "Johnson", of([*early, *late])
    for number, order in enumerate(injections(work)):
        yield f"DynaPipe {number}", of(order)


def _spread(row: Sequence[str | None]) -> _Row:
    """Each class at even distances."""
    keyed = []
    for place, (name, count) in enumerate(Counter(row).items()):
        keyed += [((k + 0.5) / count, place, name) for k in range(count)]
    return tuple(name for _, _, name in sorted(keyed, key=lambda entry: entry[:2]))


@dataclass(frozen=True)
class Fitting:
    """A sequence with a schedule that fits."""

    sequence: ClassSequence
    schedule: Schedule


def listed(rounds: Rounds, most: int | None = None) -> Schedule | None:
    """The shortest list schedule of ``rounds`` that fits, of the first ``most`` that do."""
    made = RoundList(rounds).best(most)
    return None if made is None else scheduled(rounds, made[1])


def cycles(rounds: Rounds) -> Schedule | None:
    """DynaPipe's cycles of ``rounds``, if they apply to such blocks and fit."""
    try:
        made = baseline_on_rounds("dynapipe", rounds)
    except NotApplicable:
        return None
    return None if violations(made, limit=1) else made
