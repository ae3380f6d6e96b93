"""The bytes that each rank holds at most, as planned."""

from __future__ import annotations

from weft.runtime.plan.plan import Plan


def planned_peaks(plan: Plan) -> tuple[int, ...]:
    """By rank, in bytes: what the plan says, or what is always there, as far as it says that, and the most that
    blocks hold at once."""
    ranks = len(plan.program.ranks)
    if (peaks := plan.solver.get("peak_memory")) is not None:
        return tuple(map(int, peaks))
    static = plan.solver.get("static_memory") or [0] * ranks
    if plan.problem.memory_unit != "B":
        return tuple(int(held) for held in static)
    return tuple(int(held + peak) for held, peak in zip(static, plan.schedule.peak_memory[:ranks], strict=True))
