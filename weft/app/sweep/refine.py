"""Points that a sweep adds: where a known schedule needs less memory than weft's points and is not slower.

A search under a cap has no reason to need less than the cap, so between two caps a known schedule can look better than
it is. At a cap of what that schedule needs, with its placement among those searched, weft's answer is never worse.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.app.lib.case import Case, Placement, case_of
from weft.app.sweep.points import Variant, with_memory
from weft.app.sweep.result import peak_of
from weft.solver.problem import Number
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible

__all__ = ["tightened"]


def tightened(variant: Variant, case: Case, known: Schedule) -> tuple[Variant, Case]:
    """``variant`` on GPUs with no more memory than ``known``, a schedule of ``case``, needs; and what to search then.

    Its placements are those that a search at this memory has anyway, and that of ``known``.
    """
    need = _enough(peak_of(known)) + variant.reserve
    tighter = variant.with_memory(tuple(need if amount is None else min(amount, need)
                                        for amount in variant.point.memory))
    own = next((_squeezed(placement, tighter) for placement in case.placements if placement.whole == known.problem),
               None)  # none: the whole model on every GPU, which the tighter case has again where it fits
    try:
        again = case_of(tighter.source, tighter.point.micro_batches)
    except Infeasible:
        again = Case(case.name, (), case.micro_batches)
    placements = again.placements
    if own is not None and all(placement.problem != own.problem for placement in placements):
        placements = (*placements, own)
    return tighter, Case(case.name, placements, case.micro_batches, whole_model=again.whole_model)


def _squeezed(placement: Placement, variant: Variant) -> Placement:
    """``placement`` with the memory that ``variant`` leaves its blocks."""
    static = placement.details.get("static_memory", [0] * len(variant.point.memory))
    memory = [None if amount is None else amount - variant.reserve - held
              for amount, held in zip(variant.point.memory, static, strict=True)]
    if placement.gpus:  # a device stands for GPUs that are alike
        memory = [memory[group[0]] for group in placement.gpus]
    details = dict(placement.details)
    if "gpu_memory" in details:
        details["gpu_memory"] = [None if amount is None else amount - variant.reserve
                                 for amount in variant.point.memory]
    return replace(placement, problem=with_memory(placement.problem, memory), details=details)


def _enough(amount: Number) -> Number:
    """``amount``, a sum of floats rounded up: the judge adds exactly."""
    return amount if isinstance(amount, int) else math.nextafter(amount * (1 + 1e-12), math.inf)
