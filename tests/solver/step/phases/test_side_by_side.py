"""Phases in turn, and what a fault in one of them leaves of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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


FAULT = ["failing: RuntimeError: injected"]


@pytest.mark.parametrize(("made", "ran", "stopped"), [
    (lambda of: SideBySide(((of("a", 5), 2), (of("b", 2), 1))), "a b a a b a a", []),  # until none is left
    (lambda of: SideBySide(((of("long", 2, takes=4.0), 2), (of("short", 6, takes=1.0), 1))),
     "long short short long short short short short", []),  # who takes longer has fewer turns
    (lambda of: SideBySide(((of("own", 3), 1), (InTurn((of("a", 3), of("b", 3))), 1))),
     "own a own a own a b b b", []),  # phases in turn share one turn, and say which of them runs
    (lambda of: InTurn((of("failing", 1, fails=True), of("other", 2))), "failing other other", FAULT),
    (lambda of: SideBySide(((of("failing", 1, fails=True), 1), (of("other", 3), 1))),
     "failing other other other", FAULT),  # a fault ends its phase alone
    (lambda of: SideBySide(((of("ending", 3, ends_all=True), 1), (of("other", 3), 1))), "ending", [])])
def test_phases_take_turns_and_a_fault_leaves_the_others(made: Callable[..., Any], ran: str,
                                                         stopped: list[str]) -> None:
    log, state = list[str](), search()
    list(kept(made(partial(Counting, done=log)), state))
    assert " ".join(log) == ran and state.report.stopped == stopped


def test_a_fault_in_a_vital_phase_ends_the_search() -> None:
    state = search()
    with pytest.raises(RuntimeError, match="injected"):
        list(kept(Counting("vital", 1, fails=True, vital=True), state))  # type: ignore[arg-type]
    assert not state.report.stopped


def test_every_phase_has_a_name_and_says_whether_it_is_vital() -> None:
    assert all(phase.name and phase.vital in (True, False) for phase in PHASES)
