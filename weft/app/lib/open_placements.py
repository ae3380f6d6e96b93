"""A spec's placements whose stages have alternatives: each a problem with choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.solver.schedule import Schedule
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run

__all__ = ["OpenPlacement", "open_title"]


@dataclass(frozen=True)
class OpenPlacement:
    """One cut onto the GPUs with what is decided stage by stage. ``title``, ``details``: as those of a
    :class:`~weft.app.lib.case.Placement`."""

    title: str
    problem: WideProblem
    run: Run
    details: dict[str, Any]

    def least(self, objective: str) -> float:
        """What no schedule of any assignment is below, by its devices' work."""
        from weft.solver.choices.relaxed.loads import load_bound

        return load_bound(self.problem, self.run, objective)

    def label(self, schedule: Schedule) -> Schedule:
        """``schedule`` with what it says of its placement."""
        return schedule.with_solver(**self.details)


def open_title(layout: str, backward: str, *, activations: bool) -> str:
    """Such as "1 stage a GPU, B or I+W, activations by stage": the ``layout``, how the ``backward`` runs, and whether
    stages choose what they keep."""
    return f"{layout}, {backward}" + (", activations by stage" if activations else ", by stage")
