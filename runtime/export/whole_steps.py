"""Times as whole steps, for tools that count in steps."""

from __future__ import annotations

from weft.runtime.export.refusal import ExportError
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule

#: A tool that lists every step would not survive more.
MAX_STEPS = 1_000_000


def ranked_steps(schedule: Schedule, tool: str) -> list[tuple[int, int]]:
    """Per operation its first step and its number of steps, where a step ends whenever an operation starts or ends.

    Overlaps and orders are preserved; lengths are not. Raises :class:`~weft.runtime.export.refusal.ExportError` for
    operations too short to tell their start from their end.
    """
    tolerance = schedule.makespan * RELATIVE_TOLERANCE
    step_of: dict[float, int] = {}
    step, latest = -1, float("-inf")
    for time in sorted({time for operation in schedule.operations for time in (operation.start, operation.end)}):
        if time > latest + tolerance:
            step, latest = step + 1, time
        step_of[time] = step
    steps = []
    for operation in schedule.operations:
        span = step_of[operation.end] - step_of[operation.start]
        if span < 1:
            raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: block "
                              f"{schedule.problem.blocks[operation.block].name!r} is too short beside the whole "
                              "schedule to be a step of its own")
        steps.append((step_of[operation.start], span))
    return steps
