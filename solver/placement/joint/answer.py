"""A step whose graph of stages, sizes of micro-batches and order were searched together, and the bounds on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.solver.placement.dag.in_flight import depths
from weft.solver.placement.joint.cuts import SizedCut
from weft.solver.placement.joint.sized import SizedProblem
from weft.solver.placement.placement import meets
from weft.solver.schedule import Schedule

PLACED_STEP_FORMAT = "weft.placed_step/1"


@dataclass(frozen=True, slots=True)
class Considered:
    """A graph of stages that was considered: how many they are and how deep; ``bound``: no sizes and no order of it are
    shorter, as far as they are shorter than the answer; ``makespan``: of the best that was tried (``None``: none was,
    or none fits); ``choices`` of sizes that were tried; ``chosen``: it is the answer's."""

    stages: int
    depth: int
    bound: float
    makespan: float | None
    choices: int
    chosen: bool = False


@dataclass(frozen=True)
class PlacedStep:
    """``schedule``: of the block problem of ``cut`` in micro-batches of ``sizes``, one for each stage; its own
    micro-batches are *rounds* of the largest of them. ``bound``: no choice of sizes and no order of the graphs in
    ``considered`` is shorter; ``any_bound``: those of no graph of stages are. ``whole``: these are all trade-offs of
    load and depth that a load does not rule out, none is missing for lack of time. ``at_one_size``: the shortest 1F1B
    with one size for all stages (``None``: none fits). ``alike``: all stages were to have the same size."""

    sized: SizedProblem
    cut: SizedCut
    sizes: tuple[int, ...]
    schedule: Schedule
    bound: float
    any_bound: float
    considered: tuple[Considered, ...]
    whole: bool
    at_one_size: float | None = None
    alike: bool = False
    solver: Mapping[str, Any] = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        """The makespan of the step, in the problem's time unit."""
        return self.schedule.makespan

    @property
    def status(self) -> str:
        """"optimal" if no choice of sizes and no order of the graphs considered is shorter."""
        return "optimal" if meets(self.makespan, self.bound) else "feasible"

    @property
    def covered(self) -> str:
        """The scope for which ``bound`` is proven."""
        number, sizes = len(self.considered), self.sized.sizes
        graphs = "the one graph of stages" if number == 1 else f"the {number} graphs of stages"
        which = "all trade-offs of load and depth that their loads do not rule out" if self.whole else "some trade-offs"
        return (f"every order of {graphs} considered ({which}) with " + (
            f"micro-batches of {sizes[0]}" if len(sizes) == 1 else
            f"any of the sizes {', '.join(map(str, sizes))} for {'all stages' if self.alike else 'each stage'}"))

    def to_json(self) -> dict[str, Any]:
        """The ``weft.placed_step/1`` object."""
        problem, deep = self.sized.any, depths(self.cut.after)
        first = self.schedule.problem.blocks
        stages = []
        for stage, ((kind, nodes), size) in enumerate(zip(self.cut.parts, self.sizes, strict=True)):
            device = next(block.devices[0] for block in first
                          if block.name.partition(".")[0] == f"F{stage}")
            costs = self.cut.costs[stage][size]
            stages.append({
                "device": problem.kinds[kind].name, "devices": self.cut.devices[stage], "micro_batch": size,
                "load": sum(block.duration for block in first if device in block.devices) * size / max(self.sizes),
                "memory": costs.resident + self.schedule.peak_memory[device], "resident": costs.resident,
                "depth": deep[stage], "after": list(self.cut.after[stage]),
                "nodes": [problem.nodes[node].name for node in nodes]})
        return {"format": PLACED_STEP_FORMAT, "name": problem.name, "time_unit": problem.time_unit,
                "memory_unit": problem.memory_unit, "mini_batch": self.sized.mini_batch,
                "micro_batch_sizes": list(self.sized.sizes), "makespan": self.makespan, "makespan_bound": self.bound,
                "bound_over_any_placement": self.any_bound, "status": self.status, "covered": self.covered,
                "one_size_1f1b": self.at_one_size,
                "considered": [{"stages": row.stages, "depth": row.depth, "bound": row.bound,
                                "makespan": row.makespan, "choices": row.choices} for row in self.considered],
                "stages": stages, "solver": dict(self.solver)}
