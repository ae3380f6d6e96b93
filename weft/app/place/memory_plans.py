"""A spec's model cut into a chain with memory decisions: the plans found, shown and written."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.app.lib.decided_memory import plan_details, plan_table, plan_title
from weft.app.lib.results import Tabular
from weft.solver.placement.memory.plan import MemoryPlan
from weft.solver.problem import Problem

if TYPE_CHECKING:
    from rich.console import Group

    from weft.models.candidates.build import ModelCandidate
    from weft.models.spec.spec import Spec

MEMORY_PLANS_FORMAT = "weft.memory_plans/1"


@dataclass(frozen=True)
class MemoryPlans(Tabular):
    """The result of :func:`weft.place_memory`: chains with memory decisions, with offloading first, then without.
    ``str()`` gives their tables, :meth:`to_json` the numbers."""

    WIDTH = 180
    name: str
    candidates: tuple[ModelCandidate, ...]

    @property
    def plans(self) -> tuple[MemoryPlan, ...]:
        """The plan of each."""
        return tuple(candidate.decided for candidate in self.candidates if candidate.decided is not None)

    def to_json(self) -> dict[str, Any]:
        """The ``weft.memory_plans/1`` object: all numbers, in seconds and bytes."""
        return {"format": MEMORY_PLANS_FORMAT, "name": self.name,
                "plans": [{"plan": plan_title(plan), **plan_details(plan)} for plan in self.plans]}

    def table(self) -> Group:
        """A table a plan."""
        from rich.console import Group

        return Group(*(plan_table(plan, self.name) for plan in self.plans))


def memory_plans(source: str | os.PathLike[str] | Spec, time_limit: float) -> MemoryPlans:
    """See :func:`weft.place_memory`."""
    from weft.app.lib.sources import without_entries
    from weft.models.candidates.memory_candidates import decided_candidates
    from weft.models.spec.spec import Spec, load_spec
    from weft.solver.feasibility.infeasible import Infeasible, NoneFound
    from weft.solver.placement.memory.plan_memory import MemoryPlanNotFound, NoMemoryPlan

    spec = load_spec(source) if isinstance(source, str | os.PathLike) else source
    if not isinstance(spec, Spec):
        raise ValueError(f"the spec is a {type(spec).__name__}, it must be a model spec or the name of its file")
    without_entries(spec, "phases", "parallel")
    try:
        return MemoryPlans(spec.name, tuple(decided_candidates(spec, every=False, time_limit=time_limit)))
    except NoMemoryPlan as error:
        kind = NoneFound if isinstance(error, MemoryPlanNotFound) else Infeasible
        raise kind(f"{spec.name}: {error}") from None


def with_static(candidate: ModelCandidate) -> Problem:
    """The block problem of ``candidate``, with the devices' static memory."""
    problem = candidate.problem
    return replace(problem, devices=tuple(replace(device, static=held) for device, held in zip(
        problem.devices, candidate.static_memory, strict=True)))
