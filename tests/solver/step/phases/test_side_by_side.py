"""Phases in turn, and what a fault in one of them leaves of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.builders import pipeline, v
from weft.solver.cpsat.budget import Budget
from weft.solver.step.phases import PHASES, kept
from weft.solver.step.phases.side_by_side import InTurn, SideBySide
from weft.solver.step.search import Search
from weft.solver.step.state import State

pytestmark = pytest.mark.faults


@dataclass
class Counting:
    """A phase of so many steps, which may fail in the end, or end all others."""

    name: str
    count: int
    takes: float = 0.0
    fails: bool = False
    ends_all: bool = False
    vital: bool = False
    done: list[str] = field(default_factory=list)

    def due(self, state: State) -> bool:
        return True

    def steps(self, state: State) -> Iterator[None]:
        for _ in range(self.count):
            self.done.append(state.phase)
            state.budget.deterministic_used += self.takes
            if self.ends_all:
                state.budget.interrupted = True
            yield
        if self.fails:
            raise RuntimeError("injected")


def search() -> Search:
    return Search(pipeline(v(2), forward=3, memory=3), 4, Budget(deterministic=1000.0))


def test_phases_take_turns_until_none_is_left() -> None:
    log: list[str] = []
    first, second = Counting("first", 5, done=log), Counting("second", 2, done=log)
    steps = list(SideBySide(((first, 2), (second, 1))).steps(search()))  # type: ignore[arg-type]
    assert log == ["first", "second", "first", "first", "second", "first", "first"] and len(steps) == 7


def test_who_takes_longer_has_fewer_turns() -> None:
    log: list[str] = []
    long, short = Counting("long", 2, takes=4.0, done=log), Counting("short", 6, takes=1.0, done=log)
    list(SideBySide(((long, 2), (short, 1))).steps(search()))  # type: ignore[arg-type]
    assert log == ["long", "short", "short", "long", "short", "short", "short", "short"]


def test_phases_in_turn_share_one_turn_and_say_which_of_them_runs() -> None:
    log: list[str] = []
    own, first, second = (Counting(name, 3, done=log) for name in ("own", "first", "second"))
    in_turn = InTurn((first, second))  # type: ignore[arg-type]
    list(SideBySide(((own, 1), (in_turn, 1))).steps(search()))  # type: ignore[arg-type]
    assert log == ["own", "first", "own", "first", "own", "first", "second", "second", "second"]


def test_a_fault_in_one_phase_in_turn_leaves_the_next() -> None:
    log: list[str] = []
    state = search()
    failing, other = Counting("failing", 1, fails=True, done=log), Counting("other", 2, done=log)
    list(kept(InTurn((failing, other)), state))  # type: ignore[arg-type]
    assert log == ["failing", "other", "other"] and state.report.stopped == ["failing: RuntimeError: injected"]


def test_a_fault_ends_its_phase_alone() -> None:
    log: list[str] = []
    state = search()
    failing, other = Counting("failing", 1, fails=True, done=log), Counting("other", 3, done=log)
    list(SideBySide(((failing, 1), (other, 1))).steps(state))  # type: ignore[arg-type]
    assert log == ["failing", "other", "other", "other"]
    assert state.report.stopped == ["failing: RuntimeError: injected"]


def test_the_end_of_the_search_ends_all() -> None:
    log: list[str] = []
    ending, other = Counting("ending", 3, ends_all=True, done=log), Counting("other", 3, done=log)
    list(SideBySide(((ending, 1), (other, 1))).steps(search()))  # type: ignore[arg-type]
    assert log == ["ending"]


def test_a_fault_in_a_vital_phase_ends_the_search() -> None:
    state = search()
    with pytest.raises(RuntimeError, match="injected"):
        list(kept(Counting("vital", 1, fails=True, vital=True), state))  # type: ignore[arg-type]
    assert not state.report.stopped


def test_every_phase_has_a_name_and_says_whether_it_is_vital() -> None:
    assert all(phase.name and phase.vital in (True, False) for phase in PHASES)
