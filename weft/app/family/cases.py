"""One plan at the costs of any part of a training, as a case to be solved."""

from __future__ import annotations

from dataclasses import replace

from weft.app.lib.case import Case, candidate_placement, case_of, shape_placement
from weft.models.phases.plans import Plan, candidate_at, shape_candidate_at
from weft.models.spec.sections import Spec
from weft.solver.feasibility.infeasible import Infeasible

__all__ = ["pinned_case"]


def pinned_case(spec: Spec, plan: Plan) -> Case | None:
    """``plan`` alone at the costs of ``spec``; ``None`` where it does not fit."""
    if plan.kind == "data":
        on_all = spec.model_copy(update={"placement": spec.placement.model_copy(update={
            "shapes": ("data",), "cut": None})})
        try:
            found = case_of(on_all)
        except Infeasible:
            return None
        alike = tuple(entry for entry in found.whole_model if entry.title == plan.title)
        return replace(found, whole_model=alike) if alike else None
    if plan.kind == "stages":
        candidate = candidate_at(spec, plan)
        placement = None if candidate is None else candidate_placement(candidate)
    else:
        made = shape_candidate_at(spec, plan)
        placement = None if made is None else shape_placement(*made)
    if placement is None:
        return None
    placement = replace(placement, title=plan.title, details={**placement.details, "placement": plan.title})
    return Case(spec.name, (placement,), spec.run.micro_batches, reserve=spec.cluster.reserve)
