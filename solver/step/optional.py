"""What an ablation of a step's search may leave out, by name: ``without`` of :func:`weft.solver.step.search.solve`."""

from __future__ import annotations

from collections.abc import Collection

from weft.solver.period.improvers.starts import STARTS
from weft.solver.period.registry import OPTIONAL as OF_PERIODS
from weft.solver.step.phases import PHASES, named
from weft.solver.step.phases.side_by_side import InTurn, SideBySide

__all__ = ["OF_CHOICES", "OPTIONAL", "require_known"]

#: Parts of the search over choices (:mod:`weft.solver.choices.tree`).
OF_CHOICES = ("first looks", "whole choices", "neighbours", "carried orders", "other options")

_BESIDE = tuple(phase for each in PHASES if isinstance(each, SideBySide) for phase, _ in each.phases)
_IN_TURN = tuple(phase for each in _BESIDE if isinstance(each, InTurn) for phase in each.phases)

#: All names. A phase's is that of its class, numbered where there are several; without the number all are left out.
#: Techniques of periods, known schedules as starts and parts of the search over choices have names of their own.
OPTIONAL: tuple[str, ...] = (
    *named(PHASES),
    *sorted({type(each).__name__ for each in (*PHASES, *_BESIDE, *_IN_TURN)} - set(named(PHASES))),
    *OF_PERIODS, *STARTS, *OF_CHOICES)

def require_known(names: Collection[str]) -> None:
    """Raise ``ValueError`` for a name that is none."""
    if unknown := set(names) - set(OPTIONAL):
        raise ValueError(f"no technique is called {', '.join(sorted(unknown))}; there are {', '.join(OPTIONAL)}")
