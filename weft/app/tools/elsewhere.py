"""The tools that can run an answer, and the cost of the nearest schedule that each of them can run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.solver.control.clock import unwatched
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.text.counts import listed
from weft.text.units import shown_time

if TYPE_CHECKING:
    from weft.app.lib.placements import CasePlacement
    from weft.runtime.export.tools import Tool, ToolRun
    from weft.solver.portfolio import Candidate

#: Number of a search's placements tried in a tool, least bounds first.
_TRIED = 8
#: Steps with more operations are timed only in the answer's placement.
_MOST_OPERATIONS = 100_000


def elsewhere(best: Schedule, others: Iterable[Candidate[CasePlacement]]) -> dict[str, Any]:
    """An entry for ``solver`` of ``best``: by tool, under ``tools``, the nearest schedule that it can run, from
    ``best`` and the placements of ``others``; nothing if ``best`` is not training of a model's layers.

    An entry has ``makespan``, of a step under the tool's own order, ``order``, ``placement``, ``as_is``, and the
    ``reason`` why it does not run the answer; or the reason alone.
    """
    if "layers_of_stage" not in best.solver or best.objective != "makespan" or not _trains(best):
        return {}
    from weft.runtime.export.tools import TOOLS

    few = len(best.operations) <= _MOST_OPERATIONS
    ranked = sorted((other for other in others if few and other.of.replicas == 1 and other.of.rounds is None
                     and other.micro_batches == best.micro_batches), key=lambda other: (other.bound, other.value))
    with unwatched():
        return {"tools": {tool.name: _nearest(tool, best, ranked) for tool in TOOLS.values()}}


def _trains(schedule: Schedule) -> bool:
    return any(block.kind.letter in "BIW" for block in schedule.problem.blocks)


def _nearest(tool: Tool, best: Schedule, ranked: Sequence[Candidate[CasePlacement]]) -> dict[str, Any]:
    """The best of the answer and the others in ``tool``. A tool with its own orders needs none of weft's."""
    found: dict[str, Any] = {}
    reason = ""
    try:
        run = tool.run(best)
        found = told(run, as_is=run.schedule.operations == best.operations)
    except ValueError as refusal:
        reason = str(refusal)
    left = _TRIED
    for entry in ranked:
        most = found.get("makespan", math.inf)
        if not left or most <= best.makespan * (1 + RELATIVE_TOLERANCE):
            break
        least = entry.bound if tool.own is not None or entry.best is None else entry.best.makespan
        if least >= most or (tool.own is None and entry.best is None):
            continue
        given = Schedule(entry.of.problem, entry.micro_batches, (), 0.0) if entry.best is None else entry.best
        try:
            run = tool.run(entry.of.label(given))
        except ValueError:
            continue
        left -= 1
        if run.schedule.makespan < most:
            found = told(run, as_is=False)
    return found | ({"reason": reason} if reason else {})


def told(run: ToolRun, *, as_is: bool) -> dict[str, Any]:
    """The entry of a run."""
    return {"makespan": run.schedule.makespan, "order": run.order, "as_is": as_is,
            "placement": run.schedule.solver.get("placement", ""), "gpus_a_rank": run.gpus,
            **({"settings": dict(run.settings)} if run.settings else {})}


def tool_lines(schedule: Schedule) -> list[str]:
    """A line or two on the tools that run the answer, and the nearest schedules in the others."""
    tools = schedule.solver.get("tools")
    if not isinstance(tools, Mapping) or not tools:
        return []
    from weft.runtime.export.tools import TOOLS

    named = [(TOOLS[name].title, entry) for name, entry in tools.items() if name in TOOLS]
    as_is = [title for title, entry in named if entry.get("as_is")]
    near: dict[str, list[str]] = {}
    for title, entry in named:
        if "makespan" in entry and not entry["as_is"]:
            near.setdefault(_near_text(entry, schedule), []).append(title)
    never = [title for title, entry in named if "makespan" not in entry]
    first = f"{listed(as_is)} run{'s' * (len(as_is) == 1)} it as it is" if as_is else (
        "no tool runs it as it is" + _why(entry for _, entry in named))
    rest = [f"{listed(titles)} {text}" for text, titles in near.items()]
    rest += [f"{listed(never)}: nothing that was searched"] if never else []
    return [f"tools     {first}", *([f"          {'; '.join(rest)}"] if rest else [])]


def _near_text(entry: Mapping[str, Any], schedule: Schedule) -> str:
    change = entry["makespan"] / schedule.makespan - 1
    step = shown_time(entry["makespan"], schedule.problem.time_unit)
    return f"{step} ({change:+.1%}: {entry['placement']}{', ' * bool(entry['order'])}{entry['order']})"


def _why(entries: Iterable[Mapping[str, Any]]) -> str:
    """The first reason, without the tool's name and the schedule that it cannot run."""
    reason = next((entry["reason"] for entry in entries if "reason" in entry), "")
    return f": {reason.partition(': ')[2]}" if ": " in reason else ""


def run_line(schedule: Schedule, name: str) -> str:
    """The step time in tool ``name`` under its own order, as a sentence; "" if it runs the given order."""
    from weft.runtime.export.tools import TOOLS

    tool = TOOLS[name]
    run = tool.run(schedule)
    if run.schedule.makespan == schedule.makespan and not run.order:
        return ""
    unit = schedule.problem.time_unit
    shown, before = (shown_time(value, unit) for value in (run.schedule.makespan, schedule.makespan))
    how = (f"runs its own order, {run.order}" if run.order else "runs this order") + (
        " with whole backwards" if run.schedule.problem.blocks != schedule.problem.blocks and _is_split(schedule)
        else "")
    return f"{tool.title} {how}: {shown} a step, not {before} of this schedule" if shown != before else (
        f"{tool.title} {how}: {shown} a step")


def _is_split(schedule: Schedule) -> bool:
    return any(block.kind.letter == "W" for block in schedule.problem.blocks)
