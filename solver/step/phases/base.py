"""The protocol of a phase: a part of a step's search, which the driver runs a step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from weft.solver.step.state import State

#: What a phase gives that has no further step.
_ENDED = object()


class Phase(Protocol):
    """One part of the search. It offers schedules to ``state.incumbent`` and raises the bounds in ``state.proven``."""

    #: What progress, and a fault, say that the search is doing.
    name: ClassVar[str]
    #: Whether there is no answer without it: its faults end the search, all others' end the phase alone.
    vital: ClassVar[bool]

    def due(self, state: State) -> bool:
        """Whether there is anything for it to do now."""
        ...

    def steps(self, state: State) -> Iterator[None]:
        """Run it, with a stop wherever another search may have its turn, or the whole may end."""
        ...


def kept(phase: Phase, state: State) -> Iterator[None]:
    """The steps of ``phase``, up to a fault in it that the search survives."""
    state.phase = phase.name
    steps = phase.steps(state)
    if phase.vital:
        yield from steps
        return
    ended = False
    while not ended:
        ended = True
        with state.surviving():
            ended = next(steps, _ENDED) is _ENDED
        if not ended:
            yield
