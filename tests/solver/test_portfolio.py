"""Several problems beside each other: what leads, who goes on and for how long, and what a stop or a fault leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.oracles.generated import drawn
from tests.oracles.whole import least_makespan
from weft.solver import Block, BlockKind, Budget, Device, Infeasible, NoneFound, Problem, Schedule
from weft.solver.portfolio import Candidate, Parts, Portfolio
from weft.solver.step.search import Progress, Search, solve


def _row(duration: float, memory: float = 0.0, room: float | None = None) -> Problem:
    """One block on one device: n micro-batches take n times as long."""
    return Problem(f"row of {duration:g}", (Device("d", room),),
                   (Block("b", BlockKind.FORWARD, (0,), duration, (memory,)),), (), "s", "u")


def _rows(*durations: float) -> list[Candidate[str]]:
    return [Candidate(f"{duration:g}", 0.0, _row(duration), 2) for duration in durations]


def _titles(portfolio: Portfolio[str]) -> list[str]:
    return [entry.of for entry in portfolio.entries]


@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_all_is_that_of_brute_force(seed: int) -> None:
    problems = [drawn(5 * seed + number) for number in range(5)]
    least = [least_makespan(one.problem, one.micro_batches) for one in problems]
    known = [float(value) for value in least if value is not None]
    portfolio: Portfolio[int] = Portfolio(Budget(600, deterministic=30.0))
    portfolio.search_all([Candidate(number, 0.0, one.problem, one.micro_batches)
                          for number, one in enumerate(problems)], 2, 0.1)
    assert portfolio.best == pytest.approx(min(known, default=math.inf))
    if known:
        assert portfolio.bound <= portfolio.best and portfolio.leader is not None
        assert least[portfolio.leader.of] is not None
    else:
        assert type(portfolio.nothing("all")) is Infeasible
    for entry in portfolio.entries:
        value = least[entry.of]
        assert value is None or not entry.ruled_out
        assert entry.bound <= (math.inf if value is None else float(value) * (1 + 1e-9))


def test_who_cannot_be_better_gets_no_search() -> None:
    better, worse = _rows(1.0, 3.0)
    worse.least = 6.0
    portfolio: Portfolio[str] = Portfolio(Budget(60))
    portfolio.search_all([better, worse], 1, 1.0)
    assert portfolio.leader is better and portfolio.best == 2.0
    assert worse.search is None and _titles(portfolio) == ["1"]


class _Counted(Portfolio[str]):
    """Searches that never end: who went on, for how long, among how many."""

    def __init__(self, budget: Budget, rounds: int) -> None:
        super().__init__(budget)
        self.rounds, self.turns = rounds, list[tuple[str, float, int]]()

    def go_on(self, candidate: Candidate[str], seconds: float) -> bool:
        self.turns.append((candidate.of, seconds, len(self.running)))
        if len(self.turns) >= self.rounds:
            self.budget.interrupted = True
        return True


def test_slices_go_to_the_least_bounds_first_and_double() -> None:
    candidates = _rows(1.0, 2.0, 3.0)
    for candidate, least in zip(candidates, (0.3, 0.1, 0.2), strict=True):
        candidate.least, candidate.problem, candidate.micro_batches = least, _row(1e-3), 1
    portfolio = _Counted(Budget(600), rounds=4)
    portfolio.search_all(candidates, 2, 0.5)
    assert portfolio.turns == [("2", 0.5, 2), ("1", 0.5, 2), ("2", 1.0, 2), ("1", 1.0, 2)]
    assert [entry.of for entry in portfolio.waiting] == ["3"]


def test_a_slice_has_a_step_at_least_and_ends_with_its_time() -> None:
    [candidate] = _rows(1.0)
    portfolio: Portfolio[str] = Portfolio(Budget(600, deterministic=100.0))
    portfolio.begin(candidate)

    def steps() -> Iterator[None]:
        while True:
            portfolio.budget.deterministic_used += 1.0
            yield

    candidate.steps = steps()
    assert portfolio.go_on(candidate, 0.0) and portfolio.used == 1.0
    assert portfolio.go_on(candidate, 3.5) and portfolio.used == 5.0
    assert portfolio.go_on(candidate, 1e9) and portfolio.used == 100.0
    assert (candidate.turns, candidate.taken, candidate.open) == (3, 100, True)


def test_a_proven_leader_lets_the_others_go_on_and_beaten_ones_leave() -> None:
    leader, open_, beaten = _rows(1.0, 2.0, 3.0)
    portfolio = _Counted(Budget(600), rounds=1)
    for candidate in (leader, open_, beaten):
        portfolio.begin(candidate)
        portfolio.entries.append(candidate)
        portfolio.running.append(candidate)
    for _ in leader.steps:
        pass
    portfolio.follow(leader)
    beaten.least = 6.0
    open_.search = None  # nothing is proven of it
    portfolio.round([leader, beaten, open_], 1.0)
    assert portfolio.turns == [("2", 1.0, 2)]
    assert portfolio.running == [leader, open_]


def test_of_whole_searches_the_best_answer_leads_and_none_is_worse_than_alone() -> None:
    portfolio: Portfolio[str] = Portfolio(Budget(60))
    portfolio.entries = _rows(3.0, 1.0, 2.0)
    alone = [portfolio.take(entry, solve, entry.problem, 2) for entry in portfolio.entries]
    assert [found.makespan for found in alone if found is not None] == [6.0, 2.0, 4.0]
    assert portfolio.leader is portfolio.entries[1] and portfolio.best == portfolio.bound == 2.0


def test_a_refusal_is_a_proof_only_where_it_is_one() -> None:
    fits, full, late = _rows(1.0, 2.0, 3.0)
    portfolio: Portfolio[str] = Portfolio(Budget(60))
    portfolio.entries = [full, late]

    def gives_up(problem: Problem, *, on_progress: object) -> Schedule:
        raise NoneFound("late")

    assert portfolio.take(full, solve, _row(2.0, 2.0, 1.0), 2) is None
    assert type(portfolio.nothing("both")) is NoneFound  # nobody has looked at the other
    assert portfolio.take(late, gives_up, _row(3.0)) is None
    assert full.ruled_out and not late.ruled_out and portfolio.bound == late.bound == 0.0
    assert portfolio.nothing("both") is late.refusal
    portfolio.entries = [full]
    assert portfolio.bound == math.inf and portfolio.nothing("one") is full.refusal
    portfolio.entries.append(fits)
    portfolio.take(fits, solve, fits.problem, 2)
    assert portfolio.best == portfolio.bound == 2.0


@pytest.mark.parametrize("seed", range(4))
def test_an_interrupt_keeps_the_best_so_far(seed: int) -> None:
    told: list[Progress] = []

    def stops(progress: Progress) -> None:
        told.append(progress)
        raise KeyboardInterrupt

    one = drawn([2, 4, 5, 10][seed])
    portfolio: Portfolio[int] = Portfolio(Budget(60), on_progress=stops)
    with portfolio.budget.kept(lambda: portfolio.leader is not None):
        portfolio.search_all([Candidate(number, 0.0, one.problem, one.micro_batches) for number in range(3)], 3, 1.0)
    assert portfolio.budget.interrupted and len(told) == 1
    assert portfolio.leader is not None and portfolio.best == told[0].best.makespan
    assert portfolio.bound <= float(least_makespan(one.problem, one.micro_batches) or 0) * (1 + 1e-9)


def test_an_interrupt_before_there_is_anything_goes_on() -> None:
    budget = Budget(60)
    with pytest.raises(KeyboardInterrupt), budget.kept(lambda: False):
        raise KeyboardInterrupt
    assert budget.interrupted


def _breaks() -> Iterator[None]:
    yield
    raise ZeroDivisionError


def test_a_fault_takes_nothing_from_the_others_but_a_listener_s_is_heard() -> None:
    faulty, fine = _rows(1.0, 2.0)
    portfolio: Portfolio[str] = Portfolio(Budget(60))
    portfolio.begin(faulty)
    faulty.steps = _breaks()
    assert not portfolio.go_on(faulty, math.inf) and not faulty.open
    portfolio.entries.append(faulty)
    portfolio.search_all([fine], 1, 1.0)
    assert portfolio.leader is fine and isinstance(faulty.fault, ZeroDivisionError)
    portfolio.entries.remove(fine)
    assert portfolio.nothing("one") is faulty.fault

    def deaf(progress: Progress) -> None:
        raise RuntimeError("deaf")

    with pytest.raises(RuntimeError, match="deaf"):
        Portfolio[str](Budget(60), on_progress=deaf).search_all(_rows(1.0), 1, 1.0)


def test_a_first_schedule_is_looked_for_in_any_case_where_that_is_asked() -> None:
    for asked in (False, True):
        portfolio: Portfolio[str] = Portfolio(Budget(60, deterministic=0.0), in_any_case=asked)
        portfolio.search_all(_rows(2.0, 1.0), 1, 1.0)
        assert (portfolio.leader is not None) == asked


def test_nothing_worse_is_told_and_no_bound_that_is_not_one_on_all() -> None:
    told: list[float] = []
    bounds: list[float] = []

    def hears(progress: Progress) -> None:
        told.append(progress.best.value)
        bounds.append(progress.best.value_bound)

    portfolio: Portfolio[str] = Portfolio(Budget(60), on_progress=hears)
    portfolio.entries = _rows(2.0, 3.0, 1.0)
    for entry in portfolio.entries:
        portfolio.take(entry, solve, entry.problem, 2)
    assert told == sorted(told, reverse=True) and told[-1] == 2.0 and 6.0 not in told
    assert all(bound <= 2.0 for bound in bounds)


def test_values_of_replicas_are_shared() -> None:
    problem = _row(1.0)
    alone, replicas = Candidate("one", 0.0, problem, 8), Candidate("two", 0.0, problem, 4, copies=2)
    portfolio: Portfolio[str] = Portfolio(Budget(60), "rate")
    portfolio.search_all([alone, replicas], 2, 1.0)
    assert (alone.bound, replicas.value, portfolio.bound) == (1.0, 0.5, 0.5) and portfolio.leader is replicas


def test_a_start_counts_and_is_told_before_its_search_has_begun_a_step() -> None:
    problem = _row(1.0)
    start = replace(solve(problem, 2), makespan_bound=0.0)
    candidate = Candidate("", 0.0, problem, 2, start)
    assert candidate.value == math.inf  # nobody has asked for it
    heard: list[float] = []
    portfolio: Portfolio[str] = Portfolio(Budget(60), on_progress=lambda progress: heard.append(progress.best.value))
    portfolio.begin(candidate)
    assert isinstance(candidate.search, Search) and portfolio.leader is candidate and portfolio.best == 2.0
    assert heard == [2.0]


def test_parts_come_by_bound_then_rank_then_age() -> None:
    parts: Parts[str] = Parts()
    parts.push(2.0, "c")
    parts.push(1.0, "b", 1)
    for bound, part in ((2.0, "d"), (1.0, "a"), (3.0, "e")):
        parts.push(bound, part)
    assert (parts.bound, parts.first) == (1.0, "a") and dict((part, bound) for bound, part in parts)["e"] == 3.0
    assert parts.pop() == "a"
    parts.drop(3.0)
    assert [parts.pop() for _ in range(3)] == ["b", "c", "d"]
    assert not parts and parts.bound == math.inf


def test_the_bound_of_a_part_counts_where_dividing_it_is_broken_off() -> None:
    parts: Parts[str] = Parts()
    parts.push(1.0, "whole")
    with suppress(KeyboardInterrupt), parts.divided() as part:
        parts.push(2.0, f"left of {part}")
        raise KeyboardInterrupt
    assert parts.bound == 1.0 and sorted(parts) == [(1.0, "whole"), (2.0, "left of whole")]
    with parts.divided() as part:
        parts.push(3.0, f"right of {part}")
    assert sorted(parts) == [(2.0, "left of whole"), (3.0, "right of whole")]
