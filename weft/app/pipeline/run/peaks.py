"""Planned peak memory of each rank."""

from __future__ import annotations

from weft.runtime.plan.plan import Plan


def planned_peaks(plan: Plan) -> tuple[int, ...]:
    """Peak bytes by rank: as the plan records them; otherwise its static memory plus the peak of its blocks."""
    ranks = len(plan.program.ranks)
    if (peaks := plan.solver.get("peak_memory")) is not None:
        return tuple(map(int, peaks))
    static = plan.solver.get("static_memory") or [0] * ranks
    if plan.problem.memory_unit != "B":
        return tuple(int(amount) for amount in static)
    return tuple(int(amount + peak) for amount, peak in zip(static, plan.schedule.peak_memory[:ranks], strict=True))
