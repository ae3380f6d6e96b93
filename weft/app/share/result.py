"""The gain of sharing GPUs, as shown, written and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.app.lib.results import SavedResult
from weft.app.lib.sources import PathLike
from weft.solver.schedule import Schedule
from weft.text.tables import table_of
from weft.text.units import time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

SHARE_FORMAT = "weft.share/1"

#: A period counts as proven within this share of its bound: to a tick, for durations with many digits.
PROOF_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Timed:
    """A period found, and a proven lower bound on the period of every steady state that repeats each round; in the
    problem's time unit."""

    period: float
    bound: float

    @property
    def proven(self) -> bool:
        """Whether no period is shorter."""
        return self.period <= self.bound * (1 + PROOF_TOLERANCE)


@dataclass(frozen=True, slots=True)
class JobShare:
    """A job among others: ``steps`` of it a round, each every ``shared`` time units.

    ``own``: the time of a step with the GPUs to itself. ``bare``: the same without overlap of its communication and
    computation. ``in_turn``: the time per step with the jobs one after another, each as in ``own``; ``in_turn_bare``:
    each as in ``bare``. ``micro_batches``: the number in a step of data parallel training on each GPU.
    """

    name: str
    kind: str
    steps: int
    own: Timed
    bare: Timed
    shared: float
    in_turn: float
    in_turn_bare: float
    micro_batches: int = 1

    @property
    def slowdown(self) -> float:
        """The time of a step over its time alone with its own overlap."""
        return self.shared / self.own.period

    @property
    def slowdown_bare(self) -> float:
        """The same against a step alone without overlap: below 1 if it is faster beside others."""
        return self.shared / self.bare.period

    def to_json(self) -> dict[str, Any]:
        """As it stands in ``weft.share/1``."""
        return {"name": self.name, "kind": self.kind, "steps": self.steps,
                "micro_batches": self.micro_batches, "period_shared": self.shared,
                "period_alone": self.own.period, "period_alone_bound": self.own.bound,
                "period_alone_without_overlap": self.bare.period,
                "period_alone_without_overlap_bound": self.bare.bound, "period_in_turn": self.in_turn,
                "period_in_turn_without_overlap": self.in_turn_bare, "slowdown": self.slowdown,
                "slowdown_without_overlap": self.slowdown_bare}


@dataclass(frozen=True, slots=True)
class RatioTried:
    """A ratio considered: its best period (``None``: not searched), and the reason why it is not the answer."""

    ratio: tuple[int, ...]
    found: Timed | None
    speedup: float | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in ``weft.share/1``."""
        return {"ratio": list(self.ratio), "period": None if self.found is None else self.found.period,
                "period_bound": None if self.found is None else self.found.bound, "speedup": self.speedup,
                "reason": self.reason}


@dataclass(frozen=True)
class Sharing(SavedResult):
    """Jobs on the same GPUs in one period; ``str()`` is the table.

    ``round``: the time of a round, in which each job makes its steps. ``schedule``: all jobs together, with rounds as
    its micro-batches. ``tried``: the ratios considered. ``notes``: remarks, one sentence each.
    """

    name: str
    time_unit: str
    round: Timed
    jobs: tuple[JobShare, ...]
    schedule: Schedule
    tried: tuple[RatioTried, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    interrupted: bool = False

    @property
    def ratio(self) -> tuple[int, ...]:
        """Steps of each job in a round."""
        return tuple(job.steps for job in self.jobs)

    @property
    def speedup(self) -> float:
        """The time of the round's steps in turn, each job with its own overlap, over the time of the round."""
        return sum(job.steps * job.own.period for job in self.jobs) / self.round.period

    @property
    def speedup_bare(self) -> float:
        """The same against jobs in turn without overlap."""
        return sum(job.steps * job.bare.period for job in self.jobs) / self.round.period

    @property
    def speedup_bound(self) -> float:
        """A lower bound on :attr:`speedup`, for any better schedules of the jobs alone."""
        return sum(job.steps * job.own.bound for job in self.jobs) / self.round.period

    @property
    def proven(self) -> bool:
        """Whether all periods are proven minimal."""
        return self.round.proven and all(job.own.proven and job.bare.proven for job in self.jobs)

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data (format ``weft.share/1``)."""
        return {"format": SHARE_FORMAT, "name": self.name, "time_unit": self.time_unit, "ratio": list(self.ratio),
                "period": self.round.period, "period_bound": self.round.bound, "proven": self.proven,
                "speedup": self.speedup, "speedup_bound": self.speedup_bound,
                "speedup_without_overlap": self.speedup_bare, "jobs": [job.to_json() for job in self.jobs],
                "tried": [entry.to_json() for entry in self.tried], "notes": list(self.notes),
                "rounds": self.schedule.micro_batches, "makespan": self.schedule.makespan,
                "seconds": round(self.seconds, 3), "seed": self.seed, "interrupted": self.interrupted}

    @cached_property
    def _ratio_text(self) -> str:
        return ":".join(map(str, self.ratio))

    def table(self) -> RenderableType:
        """A row a job, and a few lines on the total."""
        from rich.console import Group

        unit = time_text(0.0, self.time_unit)[1]
        table = table_of(f"{self.name}: {self._ratio_text} steps every {self._time(self.round.period)} {unit}, "
                         f"{_proof(self.round)}", (
            "job", "steps a round", f"alone, no overlap ({unit})", f"alone ({unit})", f"in turn ({unit})",
            f"shared ({unit})", "slower than alone", "faster than in turn"), ("job",))
        for job in self.jobs:
            table.add_row(job.name, str(job.steps), self._timed(job.bare), self._timed(job.own),
                          self._time(job.in_turn), self._time(job.shared), f"x {job.slowdown:.3f}",
                          f"x {job.in_turn / job.shared:.3f}")
        return Group(table, *self.lines())

    def lines(self) -> list[str]:
        """The lines below the table."""
        found = [f"together x {self.speedup:.3f} as fast as in turn, each with its own overlap"
                 + ("" if self.proven else f" (x {self.speedup_bound:.3f} at least, if they had the best that is not "
                                           "ruled out)"),
                 f"together x {self.speedup_bare:.3f} as fast as in turn without overlap"]
        others = [entry for entry in self.tried if entry.ratio != self.ratio]
        if others:
            found.append("other ratios: " + "; ".join(
                ":".join(map(str, entry.ratio)) + (f" x {entry.speedup:.3f}" if entry.speedup is not None else "")
                + f" ({entry.reason})" for entry in others))
        if not self.proven:
            found.append("~ is a period that is not proven to be the least")
        return [*found, *self.notes]

    @property
    def answer(self) -> Schedule:
        """The schedule."""
        return self.schedule

    def draw(self, path: PathLike, title: str | None) -> None:
        from weft.app.draw import draw_schedule

        draw_schedule(self.schedule, path, title=title or f"{self.name}, {self._ratio_text}")

    def _time(self, value: float) -> str:
        return time_text(value, self.time_unit)[0]

    def _timed(self, timed: Timed) -> str:
        return ("" if timed.proven else "~ ") + self._time(timed.period)


def _proof(timed: Timed) -> str:
    if timed.proven:
        return "proven the least"
    return f"at most {timed.period / timed.bound - 1:.1%} above the least" if timed.bound > 0 else "not proven"

