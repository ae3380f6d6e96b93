"""Entries of a schedule file that state one thing twice, or bound one another: a part of the judge.

Nothing in the file shows how the other placements, options and sequences were searched. But the entries on them cannot
contradict the resulting schedule, nor each other:

- a schedule stated to exist (of another placement, another option, at some moment of the search) is no shorter than its
  own lower bound, and no shorter than the schedule in the file, which was the best;
- the alternative stated as chosen is the one in the file;
- a bound over everything is not above any value found, and a number stated twice is the same both times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from weft.solver.schedule import Schedule

_TOLERANCE = 1e-9
#: A value called proven is within this share of its bound.
_PROVEN = 1e-6


def contradictions(schedule: Schedule, value: float | None, value_bound: float | None) -> Iterator[tuple[str, str]]:
    """Entries of ``schedule.solver`` that cannot be true, each with the reason (after "is"). ``value``: the schedule's
    objective, by its operations as far as these show it; ``value_bound``: the stated lower bound on it."""
    claims = _Claims(schedule, value, value_bound)
    yield from claims.periods()
    yield from claims.history()
    yield from claims.alternatives()
    yield from claims.options()
    yield from claims.overlap()
    yield from claims.sequence()
    yield from claims.counts()


class _Claims:
    def __init__(self, schedule: Schedule, value: float | None, value_bound: float | None) -> None:
        self.schedule, self.stated = schedule, schedule.solver
        self.value, self.bound = value, value_bound
        self.makespan = max((operation.end for operation in schedule.operations), default=0.0)
        self.is_makespan = self.stated.get("objective", "makespan") == "makespan"

    def periods(self) -> Iterator[tuple[str, str]]:
        """Bounds on every steady state are not above one that was found, and a proven one equals its bound."""
        found, bound = self.stated.get("repetend_period"), self.stated.get("repetend_period_bound")
        if found is None:
            return
        for key, least in (("repetend_period_bound", bound), ("steady_bound", self.stated.get("steady_bound"))):
            if _above(least, found):
                yield key, f"{self._time(least)}, above repetend_period of {self._time(found)}, so it is no lower bound"
        repetend, period = self.schedule.repetend, self.schedule.period
        if repetend is not None and repetend.micro_batches == 1 and _above(bound, period):
            yield "repetend_period_bound", (f"{self._time(bound)}, above the period of {self._time(period)}, so it is "
                                            "no lower bound")
        proven = self.stated.get("repetend_proven")
        if proven and bound is not None and bound < found * (1 - 10 * _PROVEN):
            yield "repetend_proven", "true, but repetend_period_bound is below repetend_period"
        if proven is False and bound is not None and bound >= found:
            yield "repetend_proven", "false, but repetend_period_bound equals repetend_period"

    def history(self) -> Iterator[tuple[str, str]]:
        """At no moment of the search was a better schedule known than the final one, or a bound above it."""
        for at, best, bound in self.stated.get("history") or () if self.is_makespan else ():
            if self.value is not None and _above(self.value, best):
                yield "history", (f"a search that had {self._time(best)} after {at:.12g} s, but the schedule takes "
                                  f"{self._time(self.value)}")
                return
            if _above(bound, self.value):
                yield "history", (f"a search that had proven {self._time(bound)} after {at:.12g} s, but the schedule "
                                  f"takes {self._time(self.value)}")
                return

    def alternatives(self) -> Iterator[tuple[str, str]]:
        """Each placement's bound is not above the value found for it; no value is better than that of the chosen
        one."""
        entries = self.stated.get("alternatives")
        if not isinstance(entries, list):
            return
        chosen = [entry for entry in entries if entry["verdict"] == "chosen"]
        if len(chosen) != 1 or chosen[0]["placement"] != self.stated.get("placement"):
            yield "alternatives", "a list of placements of which the chosen one is not this placement"
            return
        makespan, cut, layers = chosen[0]["makespan"], chosen[0].get("cut"), self.stated.get("layers_of_stage")
        if makespan is None or not _equal(makespan, self.makespan):
            yield "alternatives", (f"a list in which the chosen placement takes {self._time(makespan)}, but this "
                                   f"schedule takes {self._time(self.makespan)}")
            return
        if cut and layers is not None and list(cut) != [len(names) for names in layers]:
            yield "alternatives", "a list in which the chosen placement has another cut than layers_of_stage"
        for entry in entries if self.is_makespan else ():
            found, bound, name = entry["makespan"], entry["bound"], entry["placement"]
            if _above(bound, found):
                yield "alternatives", (f"a list in which {name!r} takes {self._time(found)}, below its lower bound of "
                                       f"{self._time(bound)}")
            elif found is not None and entry["verdict"] not in ("none", "memory") and _above(self.makespan, found):
                yield "alternatives", (f"a list in which {name!r} takes {self._time(found)}, less than the "
                                       f"{self._time(self.makespan)} of the one chosen")
            elif entry["verdict"] == "bound" and bound < self.makespan * (1 - _PROVEN):
                yield "alternatives", (f"a list in which {name!r} is ruled out by a bound of {self._time(bound)}, "
                                       f"below the schedule's {self._time(self.makespan)}")
            elif (entry["verdict"], found is None) in (("worse", True), ("unknown", False)):
                yield "alternatives", (f"a list in which {name!r} is {entry['verdict']!r} and "
                                       f"{'no schedule' if found is None else 'a schedule'} of it was found")
            else:
                continue
            return

    def options(self) -> Iterator[tuple[str, str]]:
        """The option taken of each choice is that of ``choices``, and leads to this schedule; no other leads to a
        better one, and no bound is above the value found."""
        entries = self.stated.get("options") or []
        listed = dict.fromkeys(entry["choice"] for entry in entries)
        for choice in {**listed, **self.schedule.choices} if entries else {}:
            taken = [entry["option"] for entry in entries if entry["choice"] == choice and entry["taken"]]
            if taken != [self.schedule.choices.get(choice)]:
                yield "options", (f"a list that has {', '.join(map(repr, taken)) or 'none'} as the option taken of "
                                  f"{choice!r}, and choices has {self.schedule.choices.get(choice)!r}")
                return
        for entry in entries:
            name, found, bound = f"{entry['choice']} = {entry['option']}", entry["makespan"], entry["bound"]
            least = min((number for number in (found, self.value if entry["taken"] else None) if number is not None),
                        default=None)
            if _above(bound, least):
                yield "options", (f"a list with a bound of {self._time(bound)} for {name}, and a schedule with it "
                                  f"takes {self._time(least)}")
            elif bound is None and (found is not None or entry["taken"]):
                yield "options", f"a list in which nothing fits with {name}, and there is a schedule with it"
            elif entry["taken"] and self.value is not None and (found is None or not _equal(found, self.value)):
                yield "options", (f"a list in which {name}, which is taken, leads to {self._time(found)}, but the "
                                  f"schedule takes {self._time(self.value)}")
            elif found is not None and self.value is not None and _above(self.value, found):
                yield "options", (f"a list in which {name} leads to {self._time(found)}, less than the "
                                  f"{self._time(self.value)} of the options taken")
            else:
                continue
            return

    def overlap(self) -> Iterator[tuple[str, str]]:
        """The value found with overlap is this schedule's, no worse than without and no better than the bounds; if no
        overlap is taken, both are one number."""
        claim = self.stated.get("overlap")
        if not isinstance(claim, Mapping) or "nothing" in claim or "not_searched" in claim:
            return
        found, without, best = claim["with"], claim["without"], claim["best_without_options"]
        if self.value is None or not _equal(found, self.value):
            yield "overlap", f"said to lead to {self._time(found)}, but the schedule takes {self._time(self.value)}"
            return
        for label, most, least in (("without", without, found), ("best_without_options", best, found),
                                   ("bound", found, claim["bound"]),
                                   ("bound_over_placements", found, claim["bound_over_placements"])):
            if most is not None and least > most * (1 + _TOLERANCE):
                yield "overlap", (f"not possible: {label} is {self._time(claim[label])} beside {self._time(found)} "
                                  "with overlap")
                return
        over = self.stated.get("bound_over_placements")
        for wrong, why in (
                (not claim["taken"] and without is not None and not _equal(without, found),
                 f"said not to be taken, and to lead from {self._time(without)} to {self._time(found)}"),
                (claim["taken"] and not self.schedule.choices, "said to be taken, and no choice is"),
                (_above(best, without), f"not possible: the best placement without overlap takes {self._time(best)}, "
                                        f"and this one {self._time(without)}"),
                (claim.get("nothing_fits") and without is not None,
                 f"said to be needed for anything to fit, and without it takes {self._time(without)}"),
                (self.bound is not None and not _equal(claim["bound"], self.bound),
                 f"said to have a bound of {self._time(claim['bound'])} here, and the schedule's is "
                 f"{self._time(self.bound)}"),
                (over is not None and not _equal(claim["bound_over_placements"], over),
                 f"said to have a bound of {self._time(claim['bound_over_placements'])} over all placements, and "
                 f"bound_over_placements is {self._time(over)}")):
            if wrong:
                yield "overlap", why
                return

    def sequence(self) -> Iterator[tuple[str, str]]:
        """The stated sequence is the one that runs."""
        claim = self.stated.get("sequence")
        if not isinstance(claim, Mapping):
            return
        rounds = self.schedule.rounds
        if claim.get("taken") is not None and claim["taken"] != (None if rounds is None else rounds.run.to_json()):
            yield "sequence", "said to be another than the micro-batches of the schedule"

    def counts(self) -> Iterator[tuple[str, str]]:
        """``placements`` is the number of placements listed, ``assignments`` the number that the options make, and no
        more of them were searched."""
        entries, number = self.stated.get("alternatives"), self.stated.get("placements")
        if isinstance(entries, list) and number is not None:
            searched = sum(entry["verdict"] != "none" for entry in entries)
            if number != searched:
                yield "placements", f"{number}, but alternatives lists {searched}"
        assignments, leaves = self.stated.get("assignments"), self.stated.get("searched")
        options = self.stated.get("options")
        if assignments is not None and options is not None:
            of = math.prod(sum(entry["choice"] == choice for entry in options)
                           for choice in {entry["choice"] for entry in options})
            if of != assignments:
                yield "assignments", f"{assignments}, but the options listed make {of}"
        if assignments is not None and leaves is not None and "sequence" not in self.stated and leaves > assignments:
            yield "searched", f"{leaves}, and there are {assignments} assignments"

    def _time(self, value: float | None) -> str:
        return "no time" if value is None else f"{value:.12g} {self.schedule.problem.time_unit}"


def _above(bound: float | None, value: float | None) -> bool:
    """Whether a lower bound is above a value that was found."""
    return bound is not None and value is not None and bound > value * (1 + _PROVEN)


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE)
