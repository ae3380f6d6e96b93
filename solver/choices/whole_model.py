"""A small problem whole: its choices and the order of everything in one CP-SAT model.

Every alternative of every block has an optional interval for each micro-batch, present if all options that it names are
taken. Of present ones: those of a device do not overlap, a block's micro-batches run in turn, waits apply if both ends
and the wait itself are present. The amounts that a pool's blocks take at their starts and give at their ends are one
reservoir. Transfers on a link follow the order of their producers, which the device that these share decides; those of
one producer come in the order of the file, as for timing (:mod:`weft.solver.timing`). Times and amounts are whole
numbers of common units of all written ones: nothing is rounded, so the bound is one on every assignment, and the answer
is one assignment's schedule. Problems whose numbers need too fine a unit are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from weft.solver.choices.relaxed.memory import held_of
from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import proven
from weft.solver.judge.validate import InvalidSchedule, validate
from weft.solver.late import cp_model
from weft.solver.problem import Dependency, Number, owners
from weft.solver.schedule import Operation, Schedule
from weft.solver.ticks import in_whole_numbers
from weft.solver.timing import time_orders
from weft.solver.values import exact
from weft.solver.wide.block import Options, WideBlock, excludes
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Rounds, Run

#: The most operations, those of all alternatives together, and the most pairs of transfers on one link.
_MOST_OPERATIONS, _MOST_PAIRS = 160, 2000
#: The largest sums of times and amounts, in their units.
_MOST_TICKS, _MOST_MEMORY = 2**36, 2**50


@dataclass(frozen=True)
class WholeAnswer:
    """``bound``: a lower bound on every assignment's makespan, in the problem's time unit, infinite if none has a
    schedule. ``schedule``: the best one found, if it is better than the known one, under ``options``."""

    bound: float
    options: Options
    schedule: Schedule | None


def is_small(problem: WideProblem, run: Run) -> bool:
    """Whether the model is small enough to be solved at once."""
    return _operations(problem, run) <= _MOST_OPERATIONS


def solve_whole(problem: WideProblem, run: Run, budget: Budget, *, deterministic: float = float("inf"),
                least: float = 0.0, best: float = float("inf")) -> WholeAnswer | None:
    """The least makespan over all assignments, or bounds on it after ``deterministic`` seconds of CP-SAT's. ``least``
    is a known lower bound, and only schedules better than ``best`` are searched for.

    ``None`` if the problem is not small, its numbers are too fine, or nothing was found or proven.
    """
    if not is_small(problem, run):
        return None
    try:
        made = _Model(problem, run)
    except _TooFine:
        return None
    if made.pairs > _MOST_PAIRS:
        return None
    made.aim(least, best)
    outcome = proven(made.model, budget, deterministic=deterministic)
    if outcome.infeasible:
        return WholeAnswer(best, {}, None)
    bound = max(0, outcome.solver.best_objective_bound) if outcome.status != cp_model.UNKNOWN else 0
    bound = max(least, float(round(bound) * made.tick))
    if not outcome.found:
        return WholeAnswer(bound, {}, None)
    options = made.options(outcome.solver)
    return WholeAnswer(bound, options, made.schedule(outcome.solver, options))


def _operations(problem: WideProblem, run: Run) -> int:
    return sum(len(run.classes[block.job]) for block in problem.blocks)


@dataclass(frozen=True)
class _Operation:
    """One micro-batch of one alternative."""

    block: int
    micro_batch: int
    start: cp_model.IntVar
    duration: int
    interval: cp_model.IntervalVar

    @property
    def end(self) -> cp_model.LinearExpr:
        return self.start + self.duration


@dataclass(frozen=True)
class _Transfer:
    """A transfer on a link, for the operation ``producer``, if all of ``active`` are true."""

    producer: _Operation
    rank: tuple[int, int, int]
    begin: cp_model.IntVar
    lag: int
    active: tuple[cp_model.IntVar, ...]


class _TooFine(Exception):
    """The numbers of a problem are too fine for CP-SAT: variables would not fit into 64 bits."""


class _Model:
    def __init__(self, problem: WideProblem, run: Run) -> None:
        self.problem = problem
        self.run = run
        self.model = cp_model.CpModel()
        self.plain = [{name: block.of_class(name) for name in set(run.classes[block.job])} for block in problem.blocks]
        self._measure()
        self.taken = {choice: {option: self.model.new_bool_var(f"{choice} = {option}") for option in options}
                      for choice, options in problem.choices.items()}
        for literals in self.taken.values():
            self.model.add_exactly_one(literals.values())
        self.present = [self._all(block.when) for block in problem.blocks]
        self.operations = {(i, m): self._operation(i, m) for i, block in enumerate(problem.blocks)
                           for m in range(len(run.classes[block.job]))}
        self.links: dict[str, list[_Transfer]] = {}
        self._run_alone()
        self._wait()
        self._limit_memory()

    # -- numbers

    def _measure(self) -> None:
        """The units, and the longest possible times."""
        blocks = [plain for of_class in self.plain for plain in of_class.values()]
        times = [*(block.duration for block in blocks), *(wait.lag for block in blocks for wait in block.after)]
        self.tick = in_whole_numbers(times)[1]
        self.horizon = sum(self._ticks(plain.duration) + sum(self._ticks(wait.lag) for wait in plain.after)
                           for i in range(len(self.problem.blocks)) for plain in self._each(i))
        amounts = [amount for block in blocks for amount in (*block.memory, *block.workspace)]
        self.unit = in_whole_numbers(amounts)[1]
        self.amounts = sum(int(abs(exact(amount)) / self.unit) for i in range(len(self.problem.blocks))
                           for plain in self._each(i) for amount in (*plain.memory, *plain.workspace))
        if self.horizon > _MOST_TICKS or self.amounts > _MOST_MEMORY:
            raise _TooFine

    def _each(self, i: int) -> list:  # type: ignore[type-arg]
        return [self.plain[i][name] for name in self.run.classes[self.problem.blocks[i].job]]

    def _ticks(self, value: Number) -> int:
        return int(exact(value) / self.tick)

    @cached_property
    def pairs(self) -> int:
        """The number of pairs of transfers on one link."""
        return sum(len(transfers) ** 2 // 2 for transfers in self.links.values())

    # -- what there is

    def _all(self, when: Options) -> cp_model.IntVar:
        """Whether all of these options are taken."""
        literals = [self.taken[choice][option] for choice, option in when.items()]
        if len(literals) == 1:
            return literals[0]
        both = self.model.new_bool_var(f"all of {dict(when)}")
        self.model.add_bool_and(literals).only_enforce_if(both)
        self.model.add_bool_or([both, *(~literal for literal in literals)])
        return both

    def _operation(self, i: int, m: int) -> _Operation:
        block = self.problem.blocks[i]
        duration = self._ticks(self.plain[i][self.run.classes[block.job][m]].duration)
        start = self.model.new_int_var(0, self.horizon, f"start {block.name} {m}")
        return _Operation(i, m, start, duration, self.model.new_optional_fixed_size_interval_var(
            start, duration, self.present[i], f"run {block.name} {m}"))

    def _run_alone(self) -> None:
        """A device runs one block at a time, and each block's micro-batches in turn."""
        for device in range(len(self.problem.devices)):
            self.model.add_no_overlap(operation.interval for operation in self.operations.values()
                                      if device in self.problem.blocks[operation.block].devices)
        for (i, m), operation in self.operations.items():
            if (i, m + 1) in self.operations:
                self.model.add(self.operations[i, m + 1].start >= operation.end).only_enforce_if(self.present[i])

    # -- waits and links

    def _wait(self) -> None:
        places = {name: [self.problem.blocks.index(block) for block in blocks]
                  for name, blocks in self.problem.alternatives.items()}
        for i, block in enumerate(self.problem.blocks):
            for number, wait in enumerate(block.after):
                for source in places[wait.block]:
                    producer = self.problem.blocks[source]
                    if excludes(producer.when, block.when) or excludes(producer.when, wait.when):
                        continue
                    active = (self.present[source], self.present[i],
                              *(self.taken[choice][option] for choice, option in wait.when.items()))
                    for m in range(len(self.run.classes[block.job]) - wait.distance):
                        self._one_wait(block, i, number, source, m, active)
        for transfers in self.links.values():
            self._in_turn(transfers)

    def _one_wait(self, block: WideBlock, i: int, number: int, source: int, m: int,
                  active: tuple[cp_model.IntVar, ...]) -> None:
        """``block`` waits for micro-batch ``m`` of block ``source``."""
        classes = self.run.classes[block.job]
        wait: Dependency = self.plain[i][classes[m]].after[number]
        lag, at = self._ticks(wait.lag), m + wait.distance
        producer, consumer = self.operations[source, m], self.operations[i, at]
        if wait.link is None:
            self.model.add(consumer.start >= producer.end + lag).only_enforce_if(active)
            return
        begin = self.model.new_int_var(0, self.horizon, f"transfer {block.name} {number} {m}")
        self.model.add(begin >= producer.end).only_enforce_if(active)
        self.model.add(consumer.start >= begin + lag).only_enforce_if(active)
        rank = (at % len(self.run.per_round(block.job)), i, number)
        self.links.setdefault(wait.link, []).append(_Transfer(producer, rank, begin, lag, active))

    def _in_turn(self, transfers: Sequence[_Transfer]) -> None:
        for number, one in enumerate(transfers):
            for other in transfers[:number]:
                both = (*one.active, *other.active)
                first, second = sorted((one, other), key=lambda transfer: transfer.rank)
                if one.producer is other.producer:
                    self.model.add(second.begin >= first.begin + first.lag).only_enforce_if(both)
                    continue
                leads = self.model.new_bool_var("")
                for literal, a, b in ((leads, one, other), (~leads, other, one)):
                    self.model.add(b.producer.start >= a.producer.end).only_enforce_if(*both, literal)
                    self.model.add(b.begin >= a.begin + a.lag).only_enforce_if(*both, literal)

    # -- memory

    def _limit_memory(self) -> None:
        owner = owners(self.problem.devices)
        for pool, device in enumerate(self.problem.devices):
            if device.memory is None or owner[pool] != pool:
                continue
            members = {d for d, of in enumerate(owner) if of == pool}
            times: list[cp_model.LinearExprT] = []
            changes: list[int] = []
            actives: list[cp_model.IntVar] = []
            for operation in self.operations.values():
                block = self.problem.blocks[operation.block]
                held = held_of(block, self.run.classes[block.job][operation.micro_batch], members)
                for time, change in ((operation.start, held.take), (operation.end, -held.give)):
                    if change:
                        times.append(time)
                        changes.append(int(change / self.unit))
                        actives.append(self.present[operation.block])
            if times:
                capacity = int(exact(device.memory) / self.unit)  # rounded down: amounts are whole
                least = sum(change for change in changes if change < 0)
                self.model.add_reservoir_constraint_with_active(times, changes, actives, least, capacity)

    # -- the answer

    def aim(self, least: float, best: float) -> None:
        """The least makespan, from ``least`` to below ``best``."""
        low = 0 if least <= 0 else int(Fraction(least) * (1 - Fraction(1, 10**9)) / self.tick)
        high = self.horizon
        if best < float("inf"):
            high = min(high, int(Fraction(best) * (1 + Fraction(1, 10**9)) / self.tick))
        self.makespan = self.model.new_int_var(low, max(low, high), "makespan")
        for operation in self.operations.values():
            self.model.add(self.makespan >= operation.end).only_enforce_if(self.present[operation.block])
        self.model.minimize(self.makespan)

    def options(self, solver: cp_model.CpSolver) -> dict[str, str]:
        """The options taken."""
        return {choice: next(option for option, literal in of.items() if solver.value(literal))
                for choice, of in self.taken.items()}

    def schedule(self, solver: cp_model.CpSolver, options: Mapping[str, str]) -> Schedule | None:
        """The answer's order, timed."""
        rounds = Rounds(self.problem.under(options), self.run)
        problem = rounds.problem
        there = [i for i in range(len(self.problem.blocks)) if solver.value(self.present[i])]
        starts = {rounds.joined(number, m): solver.value(self.operations[i, m].start)
                  for number, i in enumerate(there)
                  for m in range(len(self.run.classes[self.problem.blocks[i].job]))}
        operations = tuple(Operation(block, m, float(start * self.tick),
                                     float(start * self.tick) + float(problem.blocks[block].duration))
                           for (block, m), start in starts.items())
        made = Schedule(problem, self.run.rounds, operations, 0.0, solver={"name": "weft"})
        orders = made.orders  # of the times that keep the memory, also where lanes share it
        for found in (made.with_operations(time_orders(problem, self.run.rounds, orders)), made):
            with suppress(InvalidSchedule):
                validate(found)
                return found
        return None  # ticks are exact, but floats need not be
