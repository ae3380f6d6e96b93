"""A schedule's statements about itself, checked against its operations: a part of the judge (:mod:`weft.solver.judge`).

Every statement is *verified*, *false*, or *open*: not decidable here. Verified means that no other value would be true
of these operations; a bound is verified if a simple independent argument gives the same.

- *makespan_bound* is not above the makespan, *period_bound* not above the period.
- *repetend*: in each device's row there are ``count`` consecutive stretches, each with every block of that device q
  times, and each the same as the one before with micro-batch numbers q higher. ``first`` is the number of the first:
  the micro-batches that are furthest in it are number ``first`` (times q); its begin on a row differs from device to
  device. It stays open if several numbers would do, ``count`` if more stretches follow one another, ``micro_batches``
  if fewer repeat as well, and all three if there is only one stretch.
- *period* is the time per micro-batch of the repetend repeated forever with every block as early as possible
  (:mod:`weft.solver.judge.ring_waits`), or the one interval at which each block starts throughout the schedule: some
  blocks are made to wait. If lanes share a memory and its level hangs on when they run, the former is only a bound, as
  blocks may have to wait for room; then only the latter verifies the period.
  Without a repetend it is the one interval at which blocks start in the middle third of the makespan; it stays open
  if there is none.

For a schedule in rounds (:mod:`weft.solver.problem.rounds`) all of this is about rounds: a period and a repetend are of
the plain problem whose micro-batches are the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from weft.solver.judge.memory_rule import hang_on_times
from weft.solver.judge.ring_waits import Ring, Stretches, greatest_ratio, stretches, waits_of
from weft.solver.problem import Problem
from weft.solver.schedule import Operation, Repetend, Schedule

#: Times and bounds that differ by no more than this share are equal.
_TOLERANCE = 1e-9
#: Periods are stated in whole ticks of 2**-36 of a micro-batch's work, rounded up, and are called proven within this.
_PERIOD_TOLERANCE = 1e-6
#: More combinations of stretches than this are not tried: the period then stays open.
_MOST_COMBINATIONS = 16


@dataclass
class StatementVerdict:
    """The verdict on statements: ``false`` has a sentence each, ``verified`` names, ``open`` names and reasons."""

    false: list[str] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)


def judge_statements(schedule: Schedule, rows: Sequence[Sequence[Operation]], makespan: float,
                     tolerance: float) -> StatementVerdict:
    """The verdict on the bounds, the period and the repetend of ``schedule``.

    ``rows`` are every device's operations by start, ignored without a period and a repetend; ``tolerance`` is the
    difference at which times still count as equal.
    """
    return _Statements(schedule, rows, makespan, tolerance).judge()


class _Statements:
    def __init__(self, schedule: Schedule, rows: Sequence[Sequence[Operation]], makespan: float,
                 tolerance: float) -> None:
        self.schedule, self.problem = schedule, schedule.problem
        self.rows, self.makespan, self.tolerance = rows, makespan, tolerance
        self.verdict = StatementVerdict()
        #: The unit that a period advances by, singular and plural.
        self.each, self.all = ("micro-batch", "micro-batches") if schedule.rounds is None else ("round", "rounds")

    def judge(self) -> StatementVerdict:
        for label in ("makespan_bound", "period", "period_bound"):
            value = getattr(self.schedule, label)
            if value is not None and not math.isfinite(value):
                self.verdict.false.append(f"{label} is {value}, it must be finite")
                return self.verdict
        count = min(self.schedule.micro_batches, len(self.schedule.operations))  # it may state more than it has
        self._bound("makespan_bound", self.schedule.makespan_bound, "makespan", self.makespan, self.tolerance,
                    _least_makespan(self.problem, count))
        rings = None if self.schedule.repetend is None else self._repetend(self.schedule.repetend)
        if self.schedule.period is not None:
            self._period(self.schedule.period, rings)
        elif self.schedule.period_bound is not None:
            self.verdict.open["period_bound"] = "no period is stated"
        return self.verdict

    def _time(self, value: float) -> str:
        return f"{value:.12g} {self.problem.time_unit}"

    def _bound(self, label: str, bound: float, what: str, value: float, slack: float, least: float) -> None:
        if bound > value + slack:
            self.verdict.false.append(f"{label} is {self._time(bound)}, above the {what} of {self._time(value)}, so "
                                      "it is no lower bound")
        elif math.isclose(bound, least, rel_tol=_TOLERANCE):
            self.verdict.verified.append(label)
        else:
            self.verdict.open[label] = (f"nothing here proves that no {what} is shorter" if bound > least else
                                        f"it is true, but busy devices and chains alone give {self._time(least)}")

    # -- the repetend ------------------------------------------------------------------------------------------------

    def _repetend(self, repetend: Repetend) -> Sequence[Sequence[Ring]] | None:
        """Per device the orders that a period may have, or None if the repetend is false or too much is open."""
        verdict = self.verdict
        first, count, q = repetend.first, repetend.count, repetend.micro_batches
        for label, value, least in (("first", first, 0), ("count", count, 1), ("micro_batches", q, 1)):
            if not isinstance(value, int) or value < least:
                verdict.false.append(f"repetend: {label} is {value!r}, it must be a whole number of at least {least}")
                return None
        found = [stretches(row, len(here), q, count)
                 for row, here in zip(self.rows, _on_device(self.problem), strict=True)]
        for device, entry in zip(self.problem.devices, found, strict=True):
            if entry.length and not entry.begins.size:
                verdict.false.append(f"repetend: device {device.name!r} repeats its order {entry.most} times, {q} "
                                     f"{self.all} further each time, not {count} times")
        busy = [entry for entry in found if entry.length]
        if verdict.false or not busy:
            return None
        allowed = self._allowed(busy)
        if first not in allowed:
            nearest = min(allowed, key=lambda number: abs(number - first))
            verdict.false.append(f"repetend: first is {first}, but no {count} periods in a row begin with that one; "
                                 f"the nearest that do begin with number {nearest}")
            return None
        self._settle(busy, first, count, q, len(allowed) == 1)
        rings = [entry.rings(first) if entry.length else [()] for entry in found]
        return None if any(options is None for options in rings) else [options or [] for options in rings]

    def _allowed(self, busy: Sequence[Stretches]) -> set[int]:
        """The values that ``first`` may have: no device begins later, and one begins with exactly that."""
        least = max(int(entry.tops.min()) for entry in busy)
        return {top for entry in busy for top in set(entry.tops.tolist()) if top >= least}

    def _settle(self, busy: Sequence[Stretches], first: int, count: int, q: int, is_only: bool) -> None:
        verified, open_ = self.verdict.verified, self.verdict.open
        longest = [entry.longest(first) for entry in busy]
        most = min(min(at_most for at_most, _ in longest), max(exactly for _, exactly in longest))
        if most == 1:
            for label in ("first", "count", "micro_batches"):
                open_[f"repetend.{label}"] = "the repetend occurs once, so nothing shows that it repeats"
            return
        if is_only:
            verified.append("repetend.first")
        else:
            open_["repetend.first"] = "periods repeat from several places on"
        if count == most:
            verified.append("repetend.count")
        else:
            open_["repetend.count"] = f"{most} periods in a row are the same"
        if any(self._all_repeat(busy, fewer, count) for fewer in range(1, q) if q % fewer == 0) or count == 1:
            open_["repetend.micro_batches"] = f"fewer {self.all} repeat as well" if q > 1 else "one period is stated"
        else:
            verified.append("repetend.micro_batches")

    @staticmethod
    def _all_repeat(busy: Sequence[Stretches], fewer: int, count: int) -> bool:
        return all(stretches(entry.row, entry.length // entry.q, fewer, count * entry.q // fewer).begins.size
                   for entry in busy)

    # -- the period --------------------------------------------------------------------------------------------------

    def _period(self, period: float, rings: Sequence[Sequence[Ring]] | None) -> None:
        verdict, faults = self.verdict, len(self.verdict.false)
        slack = _TOLERANCE * abs(period)
        least = 0.0
        for device, here in zip(self.problem.devices, _on_device(self.problem), strict=True):
            work = math.fsum(self.problem.blocks[i].duration for i in here)
            least = max(least, work)
            if period < work - slack:
                verdict.false.append(f"period is {self._time(period)}, but device {device.name!r} works "
                                     f"{self._time(work)} for each {self.each}")
        for link in self.problem.links:
            least = max(least, math.fsum(dependency.lag for block in self.problem.blocks for dependency in block.after
                                         if dependency.link == link.name))
        if self.schedule.period_bound is not None:
            self._bound("period_bound", self.schedule.period_bound, "period", period, slack, least)
        if len(verdict.false) > faults:
            return
        if self.schedule.repetend is None:
            self._middle_period(period)
        elif rings is not None:
            self._repeated_period(period, rings, self.schedule.repetend.micro_batches, least)
        elif not verdict.false:
            verdict.open["period"] = "too many stretches could be the repetend"

    def _repeated_period(self, period: float, rings: Sequence[Sequence[Ring]], q: int, least: float) -> None:
        verdict = self.verdict
        if math.prod(len(options) for options in rings) > _MOST_COMBINATIONS:
            verdict.open["period"] = "too many stretches could be the repetend"
            return
        starts = {(o.block, o.micro_batch): o.start for row in self.rows for o in row}
        found = {greatest_ratio(waits_of(self.problem, chosen, q, starts), least * q) for chosen in product(*rings)}
        periods = sorted(value / q for value in found if value is not None)
        if not periods:
            verdict.false.append("repetend: repeated for ever, its blocks wait for each other in a circle")
        elif any(hang_on_times(self.problem, device) for device in range(len(self.problem.devices))):
            self._period_in_time(period, periods[0], q, starts)
        elif any(math.isclose(period, value, rel_tol=_PERIOD_TOLERANCE) for value in periods):
            if len(periods) == 1:
                verdict.verified.append("period")
            else:
                verdict.open["period"] = "several stretches could be the repetend: their periods are " + ", ".join(
                    map(self._time, periods))
        elif period < periods[0]:
            verdict.false.append(self._false_period(period, periods[0]))
        else:
            self._waiting_period(period, periods[0], q, starts)

    def _period_in_time(self, period: float, shortest: float, q: int, starts: Mapping[tuple[int, int], float]) -> None:
        """A period where memory hangs on times: none is below what the order needs, and the right amount above it is
        known only if all blocks keep it."""
        later = [starts[i, m + q] - start for (i, m), start in starts.items() if (i, m + q) in starts]
        if period < shortest * (1 - _PERIOD_TOLERANCE):
            self.verdict.false.append(self._false_period(period, shortest))
        elif later and all(abs(interval / q - period) <= _PERIOD_TOLERANCE * period for interval in later):
            self.verdict.verified.append("period")
        else:
            self.verdict.open["period"] = (f"its order needs {self._time(shortest)}, and how long blocks wait for what "
                                           "lanes of their device hold is not checked")

    def _waiting_period(self, period: float, shortest: float, q: int, starts: Mapping[tuple[int, int], float]) -> None:
        """A period longer than the order needs: blocks may wait for their time."""
        later = [starts[i, m + q] - start for (i, m), start in starts.items() if (i, m + q) in starts]
        if not later:
            self.verdict.open["period"] = (f"one period is all there is; repeated as early as can be it takes "
                                           f"{self._time(shortest)}")
        elif all(abs(interval / q - period) <= _PERIOD_TOLERANCE * period for interval in later):
            self.verdict.verified.append("period")
        else:
            self.verdict.false.append(self._false_period(period, shortest))

    def _false_period(self, period: float, actual: float) -> str:
        return (f"period is {self._time(period)}, but the repetend takes {self._time(actual)} per {self.each} when it "
                "is repeated")

    def _middle_period(self, period: float) -> None:
        """A steady stretch in the middle third of the makespan, of one micro-batch or of several."""
        blocks = self.problem.blocks
        middle: list[dict[int, float]] = [{} for _ in blocks]
        for row in self.rows:
            for o in row:
                if self.makespan / 3 <= o.start <= self.makespan * 2 / 3:
                    middle[o.block][o.micro_batch] = o.start
        for step in range(1, 2 * len(self.rows) + 1):
            later = [[present[m + step] - start for m, start in present.items() if m + step in present]
                     for present in middle]
            if any(len(intervals) < 2 for intervals in later):
                break
            interval = later[0][0]
            if all(abs(value - interval) <= self.tolerance for intervals in later for value in intervals):
                if math.isclose(interval / step, period, rel_tol=_PERIOD_TOLERANCE):
                    self.verdict.verified.append("period")
                else:
                    self.verdict.false.append(f"period is {self._time(period)}, but in the middle of the schedule "
                                              f"blocks start every {self._time(interval / step)} per {self.each}")
                return
        self.verdict.open["period"] = "there is no repetend, and no steady stretch in the middle of the schedule"


# -- bounds of the judge's own ---------------------------------------------------------------------------------------


def _least_makespan(problem: Problem, micro_batches: int) -> float:
    """A lower bound on the makespan: a device or link works for every micro-batch, after the shortest way to its first
    block and before the shortest from its last; and a chain of blocks runs one after another."""
    before, after = _chains(problem)
    least = max(head + block.duration + tail for head, block, tail in zip(before, problem.blocks, after, strict=True))
    for here in _on_device(problem):
        if here:
            least = max(least, min(before[i] for i in here) + min(after[i] for i in here)
                        + micro_batches * math.fsum(problem.blocks[i].duration for i in here))
    return least


def _on_device(problem: Problem) -> list[list[int]]:
    """Per device, the blocks on it."""
    found: list[list[int]] = [[] for _ in problem.devices]
    for i, block in enumerate(problem.blocks):
        for device in set(block.devices):
            found[device].append(i)
    return found


def _chains(problem: Problem) -> tuple[list[float], list[float]]:
    """For each block the longest chain of its micro-batch's blocks and transfers before it, and after it."""
    before, after = [0.0] * len(problem.blocks), [0.0] * len(problem.blocks)
    waits: list[list[tuple[int, float]]] = [
        [(problem.index[dependency.block], dependency.lag) for dependency in block.after if not dependency.distance]
        for block in problem.blocks]
    order = problem.topological_order
    for i in order:
        before[i] = max((before[j] + problem.blocks[j].duration + lag for j, lag in waits[i]), default=0.0)
    for i in reversed(order):
        for j, lag in waits[i]:
            after[j] = max(after[j], lag + problem.blocks[i].duration + after[i])
    return before, after
