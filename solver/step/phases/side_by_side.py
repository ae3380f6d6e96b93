"""Several phases in turn: better schedules and better bounds come side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from weft.solver.step.phases.base import Phase, kept
from weft.solver.step.state import State

_ENDED = object()
#: What a step that brings something counts of the time that it took, and the least that a step counts, in seconds.
_FRUITFUL, _LEAST = 0.3, 0.002


@dataclass(frozen=True)
class InTurn:
    """One phase after the other, as one of those side by side."""

    name: ClassVar[str] = "repetend"
    vital: ClassVar[bool] = True  # every phase in it survives on its own

    phases: tuple[Phase, ...]

    def due(self, state: State) -> bool:
        """Whether the first of them may run: the others are asked when their turn comes."""
        return True

    def steps(self, state: State) -> Iterator[None]:
        """The steps of each, if it is due then."""
        for phase in self.phases:
            if _wanted(phase, state):
                for _ in kept(phase, state):
                    yield
                    state.phase = phase.name


@dataclass
class _Running:
    phase: Phase
    steps: Iterator[None]
    weight: float
    used: float = 0.0


@dataclass(frozen=True)
class SideBySide:
    """A step of one phase after the other, until none has any left or the best is proven. Next is the phase that has
    had the least time for its weight; time that brought a better schedule or bound counts less."""

    name: ClassVar[str] = "whole schedule"
    vital: ClassVar[bool] = True  # every phase in it survives on its own

    phases: tuple[tuple[Phase, float], ...]

    def due(self, state: State) -> bool:
        """Where a better schedule or bound is possible."""
        return not state.done

    def steps(self, state: State) -> Iterator[None]:
        """One step of one phase after the other."""
        running = [_Running(phase, kept(phase, state), weight) for phase, weight in self.phases
                   if _wanted(phase, state)]
        while running:
            entry = min(running, key=lambda entry: entry.used)
            state.phase = entry.phase.name
            before, known = _used(state), _known(state)
            if next(entry.steps, _ENDED) is _ENDED:
                running.remove(entry)
                continue
            took = max(_LEAST, _used(state) - before) / entry.weight
            entry.used += took if _known(state) == known else _FRUITFUL * took
            yield
            if state.done:
                return


def _wanted(phase: Phase, state: State) -> bool:
    return phase.due(state) and type(phase).__name__ not in state.budget.without


def _used(state: State) -> float:
    """Seconds so far: deterministic ones where these are limited, so that runs repeat."""
    budget = state.budget
    return budget.elapsed if budget.deterministic is None else budget.deterministic_used


def _known(state: State) -> tuple[object, object]:
    return id(state.incumbent.best), state.least
