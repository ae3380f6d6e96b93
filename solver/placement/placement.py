"""A placement: stages with the costs and memory of each, its objective, and the proven bound on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft.solver.placement.problem import PlacementProblem

PLACEMENT_FORMAT = "weft.placement/1"

#: Within this share of its bound an objective counts as optimal: what rounding to CP-SAT's ticks may cost.
_CLOSE = 1e-6


def meets(objective: float, bound: float) -> bool:
    """Whether ``objective`` is as small as its proven ``bound``, to within one part in a million of that; where the
    bound is 0, whether it is 0. All that is called optimal here has passed this."""
    return objective <= bound * (1 + _CLOSE)


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """Operators (indices of nodes, ascending) on a device of a kind (index into the problem's kinds).

    ``compute``, ``transfers`` and ``all_reduce`` are the parts of its load; ``resident`` and ``activations`` those of
    its memory with ``in_flight`` micro-batches at once, whether or not its kind limits memory. A stage on several
    ``devices`` of its kind gives each a part of every micro-batch: all these are of one of them, and ``all_reduce`` is
    one micro-batch's share of adding up their gradients once a step.
    """

    nodes: tuple[int, ...]
    kind: int
    compute: float
    transfers: float
    resident: float
    activations: float
    in_flight: int
    devices: int = 1
    all_reduce: float = 0.0

    @property
    def load(self) -> float:
        """Time each of this stage's devices is busy for one micro-batch."""
        return self.compute + self.transfers + self.all_reduce

    @property
    def memory(self) -> float:
        """The peak memory of each of this stage's devices."""
        return self.resident + self.activations


@dataclass(frozen=True)
class Placement:
    """Stages in order. ``objective`` is the largest load of a stage, ``latency`` the longest chain of stages.

    ``bound``: no placement of this problem has a smaller objective. ``status`` is "optimal" where both agree
    (:func:`meets`), else "feasible". ``latency_bound`` holds among placements with this objective, where latency
    was minimised too. ``solver`` says how it was found: ``groups`` before and after reductions, ``coarsening`` (a
    sentence, if one that may lose the optimum was used, else ``None``), ``slicing`` (the dynamic program's
    objective), seconds, seed.
    """

    problem: PlacementProblem
    stages: tuple[PlacedStage, ...]
    objective: float
    latency: float
    bound: float
    latency_bound: float | None = None
    solver: dict[str, Any] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How much larger the objective may be than the best there is, as a fraction of the bound."""
        if self.objective <= self.bound:
            return 0.0
        return self.objective / self.bound - 1 if self.bound > 0 else float("inf")

    @property
    def status(self) -> str:
        return "optimal" if meets(self.objective, self.bound) else "feasible"

    def to_json(self) -> dict[str, Any]:
        """The ``weft.placement/1`` object: ``{format, name, time_unit, memory_unit, objective, bound, status, latency,
        latency_bound, stages}``; a stage has its operators' names, device kind (how many devices, where stages may be
        on several), loads and memory."""
        return {
            "format": PLACEMENT_FORMAT,
            "name": self.problem.name,
            "time_unit": self.problem.time_unit,
            "memory_unit": self.problem.memory_unit,
            "objective": self.objective,
            "bound": self.bound,
            "status": self.status,
            "latency": self.latency,
            "latency_bound": self.latency_bound,
            "stages": [{
                "device": self.problem.kinds[stage.kind].name,
                **({"devices": stage.devices, "all_reduce": stage.all_reduce} if self.problem.degrees else {}),
                "load": stage.load,
                "compute": stage.compute,
                "transfers": stage.transfers,
                "memory": stage.memory,
                "resident": stage.resident,
                "in_flight": stage.in_flight,
                "nodes": [self.problem.nodes[node].name for node in stage.nodes],
            } for stage in self.stages],
        }
