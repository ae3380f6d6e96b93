"""The time limit counts everything: every phase stops at its next look at the clock. No test looks at a real clock:
time passes by being looked at."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tests.solver.cpsat.test_solve import market_split
from tests.support import TINY_SPEC, pipeline, slow, v
from tests.support.large_problems import chain, everywhere, folded, random_graph, wide_m
from weft.app.compare.run import known_schedules
from weft.app.lib import options as search_options
from weft.app.lib.case import Case, CasePlacement, case_of
from weft.app.lib.options import SearchOptions, command_began
from weft.app.solving.opening import solve_source
from weft.app.solving.solve import solve_case
from weft.cli.lib.progress import ProgressLine, Waiting, lines
from weft.models.candidates import build
from weft.models.candidates.build import candidates
from weft.models.candidates.split_search import SplitSearch
from weft.models.candidates.stage_split import NoSplit, split_layers
from weft.models.spec.spec import parse_spec
from weft.solver import Budget, NotApplicable, Problem, time_orders, validate, violations
from weft.solver.bounds.load import work_bound
from weft.solver.control.clock import OutOfTime, checked, checkpoint, is_over, process_start, unwatched, watching
from weft.solver.cpsat.solve import Attempt, race
from weft.solver.period.improvers.starts import STARTS
from weft.solver.step import goals as goals_module
from weft.solver.step import proven as proven_module
from weft.solver.step import state as state_module
from weft.solver.step.search import NoneFound, Search
from weft.solver.ticks import TickProblem


class Looks:
    """A clock that goes on by one second whenever somebody looks at it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return float(self.count)


# -- the clock ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_stops_what_is_watched_and_nothing_else() -> None:
    checkpoint()
    with pytest.raises(OutOfTime), watching(lambda: True):
        checkpoint()
    with watching(lambda: True), unwatched():
        checkpoint()
        assert not is_over()
    with watching(lambda: True), watching(lambda: False):  # the outer watch counts inside, too
        assert is_over()
    assert not is_over()


def test_checked_looks_before_every_so_many() -> None:
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return False

    with watching(look):
        assert list(checked(range(10), 4)) == list(range(10))
    assert looks == 3


def test_a_budget_counts_from_its_start_and_keeps_its_reserve() -> None:
    now = 100.0
    budget = Budget(seconds=10.0, started=95.0, now=lambda: now)
    assert (budget.elapsed, budget.left) == (5.0, 5.0)
    budget.reserve = 4.0
    assert budget.left == 1.0 and not budget.spent
    now = 101.0
    assert budget.spent
    with budget.limited():
        checkpoint()
        raise AssertionError("time is over")


def test_a_share_ends_a_block_and_not_what_follows() -> None:
    now, ended = 0.0, False
    budget = Budget(seconds=100.0, now=lambda: now)
    with budget.limited(share=0.05):
        now = 4.0
        checkpoint()
        now = 6.0
        checkpoint()
        ended = True
    assert not ended and not budget.spent
    with budget.limited():
        checkpoint()
        ended = True
    assert ended


def test_shares_of_the_clock_do_not_count_where_runs_must_repeat() -> None:
    now = 0.0
    budget = Budget(seconds=100.0, deterministic=1.0, now=lambda: now)
    reached = False
    with budget.limited(share=0.05):
        now = 50.0
        checkpoint()
        reached = True
    assert reached


def test_a_solve_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.solver.cpsat.solve._GRACE", 0.0)
    monkeypatch.setattr("ortools.sat.python.cp_model.CpSolver.stop_search", lambda self: None)
    budget = Budget(seconds=5.0, now=Looks())
    outcome, = race([Attempt(market_split(), 1.0, relaxation=False)], budget)
    assert not outcome.found and not outcome.infeasible
    assert budget.deterministic_used == 0.0


def test_models_too_large_for_the_time_are_not_built() -> None:
    assert Budget().suffices(1000) and not Budget().suffices(10**7)
    assert not Budget(seconds=1e-3).suffices(1000)


def test_the_limit_of_a_command_counts_from_its_start() -> None:
    with command_began(time.monotonic() - 50.0):
        assert SearchOptions(time_limit=60.0).budget().left < 10.0
        assert SearchOptions(time_limit=60.0).restarted().budget().left > 50.0
    assert SearchOptions(time_limit=60.0).budget().left > 50.0
    assert process_start() < time.monotonic()
    assert SearchOptions(started=1.0) == SearchOptions(started=2.0)


class Work:
    """A clock that goes on with every call of a function, in Python or in C; a context manager."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        return float(self.count)

    def _went_on(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += 1

    def __enter__(self) -> Work:
        sys.setprofile(self._went_on)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


# -- searches ----------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[Callable[[], Problem], int]] = {
    "V, small": (lambda: pipeline(v(3), forward=1, split=(1, 1), memory=4), 6),
    "V": (lambda: folded(3, memory=8), 8),
    "chain on few": (lambda: chain(6, 3, memory=8), 5),
    "chain on many": (lambda: chain(6, 6, memory=6), 6),
    "M": (lambda: wide_m(4, memory=6), 6),
    "on all devices": (lambda: everywhere(6, 9), 8),
    "random graph": (lambda: random_graph(24, 4), 5),
}


def _run(problem: Problem, micro_batches: int, budget: Budget) -> Search:
    """All steps of a search, or as many as there is time for."""
    search: Search | None = None
    with budget.limited():
        search = Search(problem, micro_batches, budget)
        for _ in search.steps():
            pass
    assert search is not None
    return search


def _searched(problem: Problem, micro_batches: int, seconds: float) -> tuple[Search, Looks]:
    clock = Looks()
    return _run(problem, micro_batches, Budget(seconds=seconds, now=clock)), clock


@pytest.mark.parametrize(("name", "large"), [
    (name, large) if not large or name in ("V", "M") else slow(name, large)
    for name in CASES for large in (False, True)])
def test_a_search_ends_at_the_next_look_at_the_clock(name: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(state_module, "_MANY_OPERATIONS", 1)
    problem, micro_batches = CASES[name][0](), CASES[name][1]
    # CP-SAT looks when it likes, so its models are left out: what is tested is all that is around it.
    monkeypatch.setattr(Budget, "suffices", lambda self, pairs: False)
    for seconds in (1, 5, 25, 125, 600, 3000):
        search, clock = _searched(problem, micro_batches, float(seconds))
        found = search.result()
        assert not violations(found)
        assert found.makespan_bound <= found.makespan * (1 + 1e-9)
        # Each block that a stop passes through on its way out looks once or twice more.
        assert clock.count <= seconds + 80, (seconds, search.phase)


#: Problems whose known schedules take many times as long as the first one.
LONG: dict[str, tuple[Callable[[], Problem], int]] = {
    "V": (lambda: folded(6, memory=9), 40),
    "chain": (lambda: chain(30, 6, memory=20), 12),
    "M": (lambda: wide_m(10, memory=6), 30),
    "random graph": (lambda: random_graph(80, 4), 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_search_overruns_by_no_more_than_judging_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_MANY_OPERATIONS", 1)
    monkeypatch.setattr(Budget, "suffices", lambda self, pairs: False)
    problem, micro_batches = LONG[name][0](), LONG[name][1]
    with Work() as clock:
        next(Search(problem, micro_batches, Budget(now=clock)).steps())
    first = clock.count
    for times in (1.5, 6, 25):
        limit = times * first
        with Work() as clock:
            search = _run(problem, micro_batches, Budget(seconds=limit, now=clock))
            found = search.result()
        assert not violations(found)
        assert clock.count <= 1.1 * limit + first, (times, search.phase)


def test_no_schedule_is_begun_that_there_is_no_time_to_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_MANY_OPERATIONS", 1)
    timed: list[int] = []

    def timing(*arguments: Any) -> Any:
        timed.append(1)
        return time_orders(*arguments)

    monkeypatch.setattr(goals_module, "time_orders", timing)
    now = 0.0
    search = Search(folded(4, memory=8), 12, Budget(seconds=100.0, now=lambda: now))
    next(search.steps())  # the first is made in any case
    assert len(timed) == 1 and search.best is not None
    incumbent = search.incumbent
    orders = incumbent.orders
    incumbent.pace = 30.0
    now = 69.0
    incumbent.offer(orders, "again")
    assert len(timed) == 2
    now = 71.0
    assert not incumbent.offer(orders, "again")
    assert len(timed) == 2
    incumbent.best = None
    assert incumbent.offer(orders, "again")


def test_a_search_whose_time_is_over_before_it_begins_still_answers() -> None:
    for make, micro_batches in CASES.values():
        budget = Budget(seconds=1.0, started=-1e9)
        with budget.limited():
            search = Search(make(), micro_batches, budget)
            for _ in search.steps():
                pass
        validate(search.result())


def test_the_first_schedule_of_a_large_problem_comes_before_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_MANY_OPERATIONS", 1)
    asked: list[str] = []

    def ask(name: str, *_: object) -> int:
        asked.append(name)
        return 0

    for name in ("by_contraction", "steady_bound"):
        monkeypatch.setattr(proven_module, name, partial(ask, name))
    monkeypatch.setattr("weft.solver.step.phases.first_schedule.STARTS", {})
    search = Search(folded(4, memory=8), 40, Budget())
    assert not asked
    next(search.steps())
    assert search.best is not None and not asked
    validate(search.result())


def test_work_bound_is_a_bound() -> None:
    for make, micro_batches in CASES.values():
        problem = make()
        instance = TickProblem.of(problem)
        search, _ = _searched(problem, micro_batches, 500.0)
        bound = instance.bound(work_bound(instance, micro_batches), micro_batches)
        assert bound <= search.result().makespan * (1 + 1e-9)


# -- what else is under the clock ----------------------------------------------------------------------------------


def test_known_schedules_that_time_does_not_suffice_for_are_named() -> None:
    case = Case("V", (CasePlacement("", folded(3, memory=20), {}),), 12)
    every, none_left = known_schedules(case)
    assert every and "the time limit is too short to make it" not in none_left.values()
    some, left_out = known_schedules(case, Budget(seconds=600.0, now=Looks()))
    assert set(some) | set(left_out) == set(every) | set(none_left)
    assert "the time limit is too short to make it" in left_out.values()


def test_refusals_are_worked_out_when_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SplitSearch] = []
    before = SplitSearch.least_shortfall

    def least_shortfall(self: SplitSearch) -> Any:
        asked.append(self)
        return before(self)

    monkeypatch.setattr(SplitSearch, "least_shortfall", least_shortfall)
    layers = _layers()
    with pytest.raises(NoSplit) as caught:
        split_layers("chain", layers, [1, 1])
    assert not asked
    with watching(lambda: True):
        assert str(caught.value).endswith("was not found within the time limit")
    assert "lacks" in str(caught.value) and caught.value.missing > 0
    assert len(asked) == 2  # once in vain


def _layers() -> Any:
    from weft.models.candidates.build import layer_costs

    return layer_costs(parse_spec(TINY_SPEC))


def _past(clock: Looks, most: int) -> bool:
    return clock() > most


def test_placements_are_offered_as_far_as_time_goes() -> None:
    spec = parse_spec(TINY_SPEC)
    every, looks = candidates(spec), Looks()
    with watching(lambda: looks() < 0):
        assert candidates(spec) == every
    found: list[int] = []
    for most in range(0, looks.count + 5, max(1, looks.count // 12)):
        clock = Looks()
        with watching(partial(_past, clock, most)):
            some = candidates(spec)
        even = [candidate for candidate in some if any("cut evenly" in note for note in candidate.notes)]
        assert all(candidate in every for candidate in some) or (even == some and some)
        found.append(len(some) - len(even))
    assert found[0] == 0 and found == sorted(found) and found[-1] == len(every) and len(set(found)) > 2


@pytest.mark.parametrize("memory", ["24 GiB", "0.02 GiB"])
def test_without_time_to_cut_a_model_even_stages_serve_and_no_is_not_said(
        memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def split(*_: Any, **__: Any) -> Any:
        raise OutOfTime

    monkeypatch.setattr(build, "split_layers", split)
    text = TINY_SPEC.replace("memory: 2 GiB", f"memory: {memory}, reserve: 0 GiB")
    spec = parse_spec(text)
    assert text != TINY_SPEC
    with watching(lambda: True):
        if memory == "24 GiB":
            assert case_of(spec, None).placements
            return
        with pytest.raises(NoneFound, match="even ones do not fit; give more time"):
            case_of(spec, None)


def test_what_one_shape_cannot_do_is_no_proof_where_another_was_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(shape: str, *_: Any, **__: Any) -> Any:
        if shape == "chain":
            return split_layers("chain", _layers(), [1, 1])  # too little memory
        raise OutOfTime

    monkeypatch.setattr(build, "split_layers", split)
    assert {candidate.shape for candidate in candidates(parse_spec(TINY_SPEC))} == {"chain", "v", "loop"}


def test_a_solve_without_any_time_has_a_schedule() -> None:
    looks = Looks()
    with watching(lambda: looks() >= 0):
        found = solve_source(parse_spec(TINY_SPEC), None, SearchOptions(time_limit=0.0))
    validate(found)



def test_what_waited_says_nothing_once_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time may have come just before there was something to show."""
    stream = io.StringIO()
    waiting = Waiting(stream)
    waiting.end()
    come = iter((False, True))
    monkeypatch.setattr(waiting._over, "wait", lambda _: next(come))
    waiting._wait()
    assert stream.getvalue() == ""


def test_a_command_says_that_it_is_at_work_until_it_has_something_to_show(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    waiting = Waiting(stream)
    waiting.say(1.0)
    assert stream.getvalue() == "   1.0 s  at work, nothing found yet\n"
    ended: list[Waiting] = []
    monkeypatch.setattr(Waiting, "end", lambda self: ended.append(self))

    def said(progress: str) -> list[str]:
        return [progress]

    with lines(said, quiet=False) as listener:
        assert not ended
        listener("a schedule")
        assert ended and capsys.readouterr().err == "a schedule\n"
    monkeypatch.undo()
    with Waiting(io.StringIO(), quiet=True) as quiet:
        assert not quiet._over.is_set()
    assert quiet._over.is_set()


def test_a_limit_that_one_schedule_does_not_keep_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_MANY_OPERATIONS", 1)
    monkeypatch.setattr(search_options, "_SECONDS_EACH", 0.5)
    case = Case("V", (CasePlacement("", folded(4, memory=8), {}),), 40)  # 640 operations: 320 s

    def said(limit: float, quiet: bool = False) -> list[str]:
        stream = io.StringIO()
        with ProgressLine(stream, quiet=quiet) as line:
            solve_case(case, SearchOptions(time_limit=limit, effort=0.0, seed=0, workers=1), line)
        return stream.getvalue().splitlines()

    first, second, *_ = said(300.0)
    assert first.endswith("640 operations: to schedule, judge and write them takes about 320 s, longer than the limit "
                          "of 300 s; the first schedule is finished all the same")
    assert "best" in second
    assert not any("longer than" in line for line in said(1000.0))
    assert said(300.0, quiet=True) == []
    search_options.forewarn(10**9, 0.0, 1.0)  # nobody listens


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTS)
def test_a_known_schedule_of_many_operations_looks_at_the_clock_while_it_is_made(name: str) -> None:
    problem, micro_batches = pipeline(v(16), forward=1, split=(1, 1), memory=32), 96
    operations = len(problem.blocks) * micro_batches
    longest = last = 0.0

    def look() -> bool:
        nonlocal longest, last
        longest, last = max(longest, clock() - last), clock()
        return False

    with Work() as clock, watching(look), suppress(NotApplicable):
        STARTS[name](problem, micro_batches)
    look()
    assert longest <= 40 * operations, longest / operations
