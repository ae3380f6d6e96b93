"""A schedule in a few lines of text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.solver.schedule import Schedule


def summary(schedule: Schedule) -> str:
    """A schedule in a few lines: makespan and period with their bounds, bubble, memory, notes."""
    from weft.app.lib.verdicts import choice_lines, covered_lines, grid_lines, overlap_lines
    from weft.app.tools.elsewhere import tool_lines
    from weft.text.counts import choices_text, devices_text, micro_batches_text, unit_text
    from weft.text.units import each_text, memory_text, name_text, shown_time

    shown = partial(shown_time, unit=schedule.problem.time_unit)
    bubble = schedule.bubble
    lines = [
        f"{name_text(schedule.problem.name)}: {micro_batches_text(schedule)} on {devices_text(schedule.problem)}"
        + (f", {schedule.solver['placement']}" if schedule.solver.get("placement") and not schedule.choices else ""),
        f"makespan  {shown(schedule.makespan)}, lower bound {shown(schedule.makespan_bound)}: "
        + ("proven optimal" if schedule.gap == 0 else "no bound" if schedule.gap == float("inf")
           else f"gap at most {schedule.gap:.2%}")
        + (" for this placement" if schedule.solver.get("covered") and schedule.objective == "makespan" else ""),
        *([f"choices   {choices_text(schedule)}"] if schedule.choices else []),
        *grid_lines(schedule),
        *_objective_line(schedule, shown),
        *covered_lines(schedule),
        *overlap_lines(schedule),
    ]
    period = schedule.period or schedule.solver.get("repetend_period")
    if period is not None and (schedule.rounds is None or schedule.rounds.run.rounds > 1):
        bound = schedule.period_bound if schedule.period is not None else schedule.solver["repetend_period_bound"]
        proof = "" if bound is None else (f", proven the shortest that advances one {unit_text(schedule)} a period"
                                          if period <= bound * (1 + 1e-6) else f", lower bound {shown(bound)}")
        which = "period    " if schedule.period is not None else "repetend  "
        where = "" if schedule.period is not None else "; not in this schedule"
        lines.append(f"{which}{shown(period)} per {unit_text(schedule)}{proof}{where}")
    lines.append("bubble    " + ", ".join([*([] if bubble.steady is None else [f"steady {bubble.steady:.1%}"]),
                                          f"step {bubble.step:.1%}", f"span {bubble.span:.1%}"]))
    own = [(device.name, peak) for device, peak in zip(
        schedule.problem.devices, schedule.peak_with_static, strict=True) if device.lane_of is None]
    lines.append("memory    " + each_text([amount for _, amount in own], schedule.problem.memory_unit,
                                          [name for name, _ in own]) + _reserved(schedule))
    if "gradients_freed" in schedule.solver:
        freed, (_, memory) = schedule.solver["gradients_freed"], memory_text(1, schedule.problem.memory_unit)
        lines.append("AdamA     keeps no whole gradients; with Adam they would take "
                     f"{each_text(freed, schedule.problem.memory_unit)} {memory} more")
    lines += tool_lines(schedule)
    lines += choice_lines(schedule)
    if schedule.solver.get("stopped"):
        lines.append("stopped   a part of the search failed, this is the best without it: "
                     f"{schedule.solver['stopped']}")
    if schedule.solver.get("interrupted"):
        lines.append("note      interrupted: the best so far, the search was not finished")
    notes = schedule.solver.get("notes")
    lines += [f"note      {note}" for note in notes] if isinstance(notes, list) else []
    return "\n".join(lines)


def _reserved(schedule: Schedule) -> str:
    """The planned part of the GPUs' memory, and the reserve; nothing if unknown."""
    from weft.text.units import each_text, memory_text

    reserve, most = schedule.solver.get("reserve"), schedule.solver.get("gpu_memory")
    limits = sorted({own for own in most if own is not None}) if isinstance(most, list) else []
    if not reserve or not limits:
        return ""
    unit = schedule.problem.memory_unit
    has, (amount, name) = each_text([own + reserve for own in limits], unit), memory_text(reserve, unit)
    return f"; of {has} {name} each, {amount} {name} is kept free (cluster.reserve)"


def _objective_line(schedule: Schedule, shown: Callable[[float], str]) -> list[str]:
    """The objective, if it is not the makespan."""
    from weft.text.counts import unit_text

    if schedule.objective == "makespan":
        return []
    meaning = {"span": "the next step can begin so much later",
               "rate": f"per {unit_text(schedule)} of any steady state",
               "latency": "of one micro-batch at this floor"}[schedule.objective]
    gap = schedule.value_gap
    proof = "proven optimal" if gap == 0 else "no bound" if gap == float("inf") else f"gap at most {gap:.2%}"
    return [f"{schedule.objective:10}{shown(schedule.value)}, lower bound {shown(schedule.value_bound)}: {proof}; "
            f"{meaning}"]
