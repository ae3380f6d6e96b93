"""The phases of a step's search, in their order.

Each phase has a file with its technique and its constants, and a line in :data:`PHASES`. It gets the
:class:`~weft.solver.step.state.State` of the search, offers schedules to its incumbent and raises its bounds. To add
one: a file with a class as :class:`~weft.solver.step.phases.base.Phase` says, and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.solver.step.phases.at_once import AtOnce
from weft.solver.step.phases.base import Phase, kept
from weft.solver.step.phases.completion import Completion
from weft.solver.step.phases.first_schedule import FirstSchedule
from weft.solver.step.phases.longer_periods import LongerPeriods
from weft.solver.step.phases.moves import Moves
from weft.solver.step.phases.polish import Polish
from weft.solver.step.phases.shorter import Shorter
from weft.solver.step.phases.side_by_side import InTurn, SideBySide
from weft.solver.step.phases.states import Devices, States
from weft.solver.step.phases.steady_state import SteadyState
from weft.solver.step.phases.whole import Whole

__all__ = ["PHASES", "Phase", "kept", "named"]

#: Operations up to which a problem is solved whole from the start, to proof; up to which that is tried for a while; up
#: to which for a moment; and, once there is a steady state to start from, for longer.
_SMALL, _FEW, _MEDIUM, _LARGE = 30, 64, 110, 400

#: All phases, in the order in which they come.
PHASES: tuple[Phase, ...] = (
    AtOnce(),
    FirstSchedule(),
    Whole(up_to=_SMALL, at_most=20.0, relaxation=False),
    Whole(up_to=_FEW, at_most=1.0, share=0.3, more_than=_SMALL, relaxation=False),
    Moves(at_most=1.0, share=0.15, idle=3),
    States(at_most=0.5, share=0.2, beam=True),
    States(at_most=2.0, share=0.8),
    Whole(up_to=_MEDIUM, at_most=0.1, share=0.1, more_than=_FEW, relaxation=False),
    SideBySide(((Moves(), 5),
                (InTurn((SteadyState(), Completion(), Whole(up_to=_LARGE, at_most=2.0, share=0.2), LongerPeriods(),
                         States(at_most=10.0, share=0.3, no_less=2.0))), 2),
                (Polish(), 3), (Shorter(), 1), (Devices(each=1.0, share=0.1), 1))),
    SteadyState(),
    Completion(),
    LongerPeriods(),
)


def named(phases: Sequence[Phase]) -> Mapping[str, Phase]:
    """``phases`` by the names of their classes, numbered where there are several: ``Whole 1``."""
    names = [type(phase).__name__ for phase in phases]
    return {name if names.count(name) == 1 else f"{name} {names[:i + 1].count(name)}": phase
            for i, (name, phase) in enumerate(zip(names, phases, strict=True))}
