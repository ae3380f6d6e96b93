"""The causes of a schedule's length, or of its absence, in sentences and in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.app.lib.case import case_of
from weft.app.lib.judged import judged
from weft.app.lib.options import SearchOptions, require_count
from weft.app.lib.sources import names_schedule
from weft.app.lib.verdicts import choice_lines
from weft.app.solving.solve import solve_case
from weft.solver.control.stopping import STOP
from weft.solver.diagnose.bubbles import Cause, DeviceIdle, idle_times
from weft.solver.diagnose.critical_cycle import CriticalCycle, critical_cycle
from weft.solver.diagnose.critical_path import CriticalPath, critical_path
from weft.solver.diagnose.sensitivity import WhatIf, what_if
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.feasibility.memory_conflict import InFlight, in_flight
from weft.solver.judge.validate import InvalidSchedule, violations
from weft.solver.names import Names
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Progress
from weft.text import sentences
from weft.text.counts import micro_batches_text, option_lines

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source

#: Causes of idle time whose name collides with another entry in the numbers: ``device`` is the idle device itself.
_KEYS: Mapping[Cause, str] = {"device": "other_devices"}
#: The search's share of the time if what-if figures follow, and the share for putting them into words.
_SEARCH_SHARE, _TELLING = 0.5, 0.1


@dataclass(frozen=True)
class Explanation:
    """The causes of a schedule's length, or the reason why no schedule fits (``refusal``, and ``schedule`` is None).

    ``what_if`` is present if requested; ``wanted_in_flight`` is the requested number of micro-batches in flight.
    ``str()`` is :attr:`text`.
    """

    schedule: Schedule | None
    refusal: Infeasible | None = None
    what_if: WhatIf | None = None
    wanted_in_flight: int | None = None
    problem: Problem | None = None

    @cached_property
    def path(self) -> CriticalPath | None:
        """The critical path of the makespan."""
        return None if self.schedule is None else critical_path(self.schedule)

    @cached_property
    def cycle(self) -> CriticalCycle | None:
        """The critical cycle of the period; None without a steady state of two periods or more."""
        return None if self.schedule is None else critical_cycle(self.schedule)

    @cached_property
    def idle(self) -> tuple[DeviceIdle, ...]:
        """Every device's idle time and its causes."""
        return () if self.schedule is None else idle_times(self.schedule)

    @cached_property
    def in_flight(self) -> tuple[InFlight, ...]:
        """Per device, the number of micro-batches in its memory at once."""
        problem = self.problem if self.schedule is None else self.schedule.problem
        return () if problem is None else in_flight(problem)

    @cached_property
    def text(self) -> str:
        """The explanation in words."""
        lines: list[str] = []
        if self.refusal is not None:
            lines.append(sentences.capital(str(self.refusal)) + ".")
        if self.schedule is not None and self.path is not None:
            lines += sentences.length(self.schedule, self.path)
            lines += sentences.idle(self.schedule, self.idle)
            lines += sentences.period(self.schedule, self.cycle, self.in_flight)
            lines += choice_lines(self.schedule)
            lines += option_lines(self.schedule)
            lines += technique_lines(self.schedule)
        problem = self.problem if self.schedule is None else self.schedule.problem
        if problem is not None and self.wanted_in_flight is not None:
            lines.append(sentences.flight(problem, self.in_flight, self.wanted_in_flight))
        if self.schedule is not None and self.what_if is not None:
            lines += sentences.gains(self.schedule, self.what_if)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """The explanation in numbers, in the problem's units; blocks and devices by name."""
        result: dict[str, Any] = {"text": self.text}
        if self.refusal is not None:
            result["refusal"] = self._refusal_json(self.refusal)
        if self.schedule is not None:
            result |= self._schedule_json(self.schedule)
        problem = self.problem if self.schedule is None else self.schedule.problem
        if problem is not None:
            result["in_flight"] = [{**asdict(entry), "device": problem.devices[entry.device].name}
                                   for entry in self.in_flight]
        if self.what_if is not None:
            result["what_if"] = _what_if_json(self.what_if)
        return result

    def _refusal_json(self, refusal: Infeasible) -> dict[str, Any]:
        problem = self.problem
        return {
            "message": str(refusal), "proven": not isinstance(refusal, NoneFound),
            "most_micro_batches": refusal.most_micro_batches, "most_is_exact": refusal.most_exact,
            "shortages": [
                {"device": problem.devices[entry.device].name, "capacity": entry.capacity, "least": entry.least,
                 "least_is_exact": entry.exact, "missing": entry.missing,
                 "when_starts": problem.blocks[entry.at].name, "in_every_order": entry.forced,
                 "held": [{"block": problem.blocks[block].name, "amount": amount} for block, amount in entry.held],
                 "left_behind": entry.left_behind}
                for entry in (refusal.shortages if problem is not None else ()) if problem is not None]}

    def _schedule_json(self, schedule: Schedule) -> dict[str, Any]:
        problem, named = schedule.problem, Names(schedule)
        names = [named.block(block) for block in range(len(problem.blocks))]
        path, cycle = self.path, self.cycle
        devices = [device.name for device in problem.devices]
        result: dict[str, Any] = {
            "makespan": schedule.makespan, "makespan_bound": schedule.makespan_bound, "period": schedule.period,
            "critical_path": [] if path is None else [
                {"kind": step.kind, "block": names[step.operation.block],
                 "micro_batch": named.micro_batch(step.operation),
                 **({} if (job := named.job(step.operation.block)) is None else {"job": job}),
                 "start": step.start, "end": step.end, "reason": step.reason,
                 "device": None if step.device is None else devices[step.device], "link": step.link}
                for step in path.steps],
            "critical_cycle": None,
            "techniques": schedule.solver.get("techniques", {}),
            **({"choices": dict(schedule.choices), "options": schedule.solver.get("options", [])}
               if schedule.choices else {}),
            "idle": [{"device": devices[entry.device], "busy": entry.busy, "idle": entry.total,
                      **{_KEYS.get(cause, cause): seconds for cause, seconds in entry.by_cause.items()}}
                     for entry in self.idle],
        }
        if cycle is not None:
            result["critical_cycle"] = {
                "weight": cycle.weight, "height": cycle.height, "micro_batches": cycle.micro_batches,
                "period": cycle.period, "device": None if cycle.device is None else devices[cycle.device],
                "turns": [{"source": names[turn.source], "target": names[turn.target], "weight": turn.weight,
                           "height": turn.height, "reason": turn.reason,
                           "device": None if turn.device is None else devices[turn.device]} for turn in cycle.waits]}
        return result


def technique_lines(schedule: Schedule) -> list[str]:
    """The calls, results and time of each technique of the period search; none if the schedule does not record them."""
    lines = []
    for name, count in schedule.solver.get("techniques", {}).items():
        counts = [f"{count[key]} {key[:-1] if count[key] == 1 else key}" for key in ("calls", "proofs", "improvements")
                  if count[key] or key == "calls"]
        lines.append(f"  {name}: {', '.join(counts)}, {count['seconds']:.2f} s")
    return ["How the period was searched:", *lines] if lines else []


def _what_if_json(found: WhatIf) -> dict[str, Any]:
    return {
        "unchanged": {"makespan": found.unchanged.makespan, "period": sentences.period_of(found.unchanged)},
        "figures": [{"change": figure.change.title, "kind": figure.change.kind, "makespan": figure.schedule.makespan,
                     "makespan_bound": figure.schedule.makespan_bound,
                     "period": figure.period,
                     "how": "re-solved" if figure.resolved else "same order re-timed"} for figure in found.figures],
        "untried": [change.title for change in found.untried],
    }


def explain_source(
    source: Source | Schedule,
    micro_batches: MicroBatches | None,
    options: SearchOptions,
    on_progress: Callable[[Progress], None],
    *,
    what_if_figures: bool,
    in_flight_wanted: int | None,
) -> Explanation:
    """See :func:`weft.explain`."""
    if in_flight_wanted is not None:
        require_count("in_flight", in_flight_wanted)
    schedule = _schedule(source)
    if schedule is None:
        assert not isinstance(source, Schedule)
        try:
            with options.preparing():
                case = case_of(source, micro_batches, options)
            problem = case.placements[0].problem if len(case.placements) == 1 else None
        except Infeasible as refusal:
            return Explanation(None, refusal)
        try:
            schedule = solve_case(case, options.shortened(_SEARCH_SHARE if what_if_figures else 1.0), on_progress)
        except Infeasible as refusal:
            return Explanation(None, refusal, wanted_in_flight=in_flight_wanted, problem=problem)
    else:
        run = schedule.micro_batches if schedule.rounds is None else schedule.rounds.run.to_json()
        if micro_batches not in (None, run):
            raise ValueError(f"the schedule runs {micro_batches_text(schedule)}, not {micro_batches}; "
                             "leave the number out, or explain the problem")
        if what_if_figures and (faults := violations(schedule)):
            raise InvalidSchedule([f"what-if figures are of schedules that run micro-batches in turn, ask without: "
                                   f"{fault}" for fault in faults])
    STOP.hold()  # an explanation without what-if figures is still an answer
    clock = options.budget()
    clock.reserve = 0.0 if options.effort is not None else _TELLING * options.time_limit
    found = what_if(schedule, effort=options.effort or 0.3, seed=options.seed,
                    spent=lambda: clock.left <= 0) if what_if_figures else None
    return Explanation(schedule, what_if=found, wanted_in_flight=in_flight_wanted)


def _schedule(source: Source | Schedule) -> Schedule | None:
    """The schedule given or named by ``source``, its micro-batches in any order; None if it is a spec or a problem."""
    if isinstance(source, Schedule) or names_schedule(source):
        return judged(source, in_turn=False)
    return None
