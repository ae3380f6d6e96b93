"""Several phases in turn: better schedules and better bounds come side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from weft.solver.step.phases.base import Phase, kept
from weft.solver.step.state import State

__all__ = ["SideBySide"]

_ENDED = object()


@dataclass(frozen=True)
class SideBySide:
    """So many steps of each phase, again and again, until none has any left or the best is proven."""

    name: ClassVar[str] = "whole schedule"
    vital: ClassVar[bool] = True  # every phase in it survives on its own

    phases: tuple[tuple[Phase, int], ...]

    def due(self, state: State) -> bool:
        """Where a better schedule or bound is possible."""
        return not state.done

    def steps(self, state: State) -> Iterator[None]:
        """One step of one phase after the other."""
        running = [(phase, kept(phase, state), count) for phase, count in self.phases if phase.due(state)]
        while running:
            for entry in list(running):
                phase, steps, count = entry
                for _ in range(count):
                    state.phase = phase.name
                    if next(steps, _ENDED) is _ENDED:
                        running.remove(entry)
                        break
                    yield
                    if state.done:
                        return
