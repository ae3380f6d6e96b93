"""Every number that a schedule file states: verified, false, or not checked. A part of the judge.

``makespan``, ``peak_memory`` and ``status`` follow from the operations and the bounds; bounds, period and repetend are
for :mod:`weft.solver.judge.statements`. In the ``solver`` object, some entries can be derived (the time of a
micro-batch from its first start to its last end, how soon the next step can begin), and entries stated twice must agree
(:mod:`weft.solver.judge.contradictions`); the rest says how the schedule came about, which nothing in the file can
prove: it is listed, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from weft.solver.judge.contradictions import contradictions
from weft.solver.judge.spans import least_span, span_of
from weft.solver.judge.statements import StatementVerdict
from weft.solver.judge.validate import peaks, statements
from weft.solver.problem import Number
from weft.solver.schedule import Schedule

_TOLERANCE = 1e-9
#: A value called proven is within this share of its bound.
_PROVEN = 1e-6

#: Why some entries of ``solver`` stay open; for the others the reason is :data:`_HOW`.
_OPEN: Mapping[str, str] = {
    "steady_bound": "nothing here proves that no steady state is shorter",
    "repetend_period": "the repetend that the search found is another one",
    "repetend_period_bound": "nothing here proves that no repetend is shorter",
    "repetend_proven": "it is whether the two above are equal, and these are not checked",
    "bound_over_placements": "the other placements are not in the file",
    "bound_over_any_placement": "the other placements are not in the file",
    "placements": "the other placements are not in the file",
    "alternatives": "the other placements are not in the file",
    "covered": "the other placements are not in the file",
    "latency_bound": "nothing here proves that no latency is shorter",
    "latency_period": "it is what was asked for",
    "objective": "it is what was asked for",
    "span_bound": "nothing here proves that no span is shorter",
    "options": "the other options are not in the file",
    "overlap": "the schedules without overlap are not in the file",
}
_HOW = "it says how the schedule came about"


def judge_claims(value: Mapping[str, Any], schedule: Schedule) -> StatementVerdict:
    """The verdict on all statements of ``value``, the ``weft.schedule/1`` object that ``schedule`` was read from,
    except its operations. The verdict on a schedule that breaks other rules (:mod:`weft.solver.judge`) means little."""
    verdict = statements(schedule)
    _derived(value, schedule, verdict)
    if schedule.choices:
        verdict.open["choices"] = _OPEN["options"]
    _Solver(schedule, verdict).judge()
    return verdict


def _derived(value: Mapping[str, Any], schedule: Schedule, verdict: StatementVerdict) -> None:
    makespan = max((operation.end for operation in schedule.operations), default=0.0)
    false = len(verdict.false)
    if not _equal(value["makespan"], makespan):
        verdict.false.append(f"makespan is stated as {value['makespan']}, but the last operation ends at {makespan}")
    else:
        verdict.verified.append("makespan")
    for device, (stated, actual) in enumerate(zip(value["peak_memory"], peaks(schedule), strict=True)):
        if not _equal(stated, float(actual), slack=1e-9 * _largest_amount(schedule, device)):
            verdict.false.append(f"peak_memory[{device}] is stated as {stated}, but the operations there reach "
                                 f"{float(actual):.12g}")
    is_met = makespan <= schedule.makespan_bound * (1 + _TOLERANCE)
    status = "optimal" if is_met else "feasible"
    if value["status"] != status:
        verdict.false.append(f"status is stated as {value['status']!r}, but makespan and makespan_bound make it "
                             f"{status!r}")
    if len(verdict.false) == false:
        verdict.verified += ["peak_memory", "status"]


def _largest_amount(schedule: Schedule, device: int) -> float:
    blocks = schedule.problem.blocks
    return float(max((abs(amount) for i, places in schedule.problem.pool_places[device].items() for place in places
                      for amount in (blocks[i].memory[place], blocks[i].workspace[place])), default=0))


def _equal(one: Number, other: Number, slack: float = 0.0) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=slack)


class _Solver:
    """The entries of ``schedule.solver``, each of which is verified, open, or false."""

    def __init__(self, schedule: Schedule, verdict: StatementVerdict) -> None:
        self.schedule, self.verdict = schedule, verdict
        self.stated = schedule.solver
        self.makespan = max((operation.end for operation in schedule.operations), default=0.0)
        self.verified: set[str] = set()
        self.false: set[str] = set()
        self.each = "micro-batch" if schedule.rounds is None else "round"

    def judge(self) -> None:
        of = self.stated.get("objective", "makespan")
        value = {"makespan": self.makespan, "rate": self.schedule.period}.get(of, self.stated.get(of))
        for key in ("bound_over_placements", "bound_over_any_placement"):
            self._at_most(key, f"the {of}", value)
        self._at_most("steady_bound", "period", self.schedule.period)
        for key, why in contradictions(self.schedule, value, self.schedule.value_bound):
            self._refuse(key, why)
        self._at_most("latency_bound", "latency", self.stated.get("latency"))
        period, floor = self.schedule.period, self.stated.get("latency_period")
        if period is not None and floor is not None and period > floor * (1 + _PROVEN):
            self._refuse("latency_period", f"{self._time(floor)}, and the period of {self._time(period)} is longer")
        self._loads()
        self._latency()
        self._span()
        self._memory()
        if isinstance(self.stated.get("alternatives"), list) and not {"placements", "alternatives"} & self.false:
            self.verified.add("placements")
        for key in self.stated:
            if key in self.verified:
                self.verdict.verified.append(f"solver.{key}")
            elif key not in self.false:
                self.verdict.open[f"solver.{key}"] = _OPEN.get(key, _HOW)

    def _refuse(self, key: str, why: str) -> None:
        self.false.add(key)
        self.verdict.false.append(f"solver: {key} is {why}")

    def _time(self, value: float) -> str:
        return f"{value:.12g} {self.schedule.problem.time_unit}"

    def _at_most(self, key: str, what: str, most: float | None) -> None:
        value = self.stated.get(key)
        if value is not None and most is not None and value > most * (1 + _PROVEN):
            self._refuse(key, f"{self._time(value)}, above {what} of {self._time(most)}, so it is no lower bound")

    def _loads(self) -> None:
        """No repetend is shorter than a device's work, and no bound on all repetends needs to be."""
        problem = self.schedule.problem
        work = max(math.fsum(block.duration for block in problem.blocks if device in block.devices)
                   for device in range(len(problem.devices)))
        found = self.stated.get("repetend_period")
        if found is not None and found < work * (1 - _TOLERANCE):
            self._refuse("repetend_period", f"{self._time(found)}, and the busiest device works {self._time(work)} "
                                            f"for each {self.each}")

    def _latency(self) -> None:
        stated = self.stated.get("latency")
        if stated is None:
            return
        spans: dict[int, tuple[float, float]] = {}
        for o in self.schedule.operations:
            first, last = spans.get(o.micro_batch, (math.inf, -math.inf))
            spans[o.micro_batch] = min(first, o.start), max(last, o.end)
        longest = max((last - first for first, last in spans.values()), default=0.0)
        if abs(stated - longest) > _PROVEN * longest:
            self._refuse("latency", f"{self._time(stated)}, but the longest {self.each} takes {self._time(longest)}")
        else:
            self.verified.add("latency")

    def _span(self) -> None:
        """How soon the next step can begin, and a bound on it (:mod:`weft.solver.judge.spans`)."""
        stated, bound = self.stated.get("span"), self.stated.get("span_bound")
        if stated is None and bound is None:
            return
        span, where = span_of(self.schedule)
        if stated is not None and not _equal(stated, span, slack=_TOLERANCE * self.makespan):
            self._refuse("span", f"{self._time(stated)}, but {where} takes {self._time(span)} from its first start to "
                                 "its last end")
        elif stated is not None:
            self.verified.add("span")
        self._at_most("span_bound", "the span", span)
        if bound is not None and "span_bound" not in self.false and _equal(bound, least_span(self.schedule)):
            self.verified.add("span_bound")

    def _memory(self) -> None:
        """The static memory of each device and its memory for blocks add up to the GPU's memory."""
        static, total = self.stated.get("static_memory"), self.stated.get("gpu_memory")
        if not isinstance(static, list) or not isinstance(total, list):
            return
        rows: Sequence[tuple[Number, Number | None, Number | None]] = [
            (base, has, device.memory)
            for base, has, device in zip(static, total, self.schedule.problem.devices, strict=True)]
        for device, (base, has, room) in enumerate(rows):
            if (has is None) != (room is None) or (has is not None and room is not None
                                                   and not _equal(base + room, has)):
                self._refuse("static_memory", f"{base} on device {device}, gpu_memory {has} and what the problem's "
                                              f"device has for blocks {room}: the first and the last must add up to "
                                              "the second")
                self.false.add("gpu_memory")
                return
        self.verified |= {"static_memory", "gpu_memory"}
