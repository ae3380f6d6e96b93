"""Search options: the keywords of the public functions, as one object for all functions they call.

Notices of a search beside its progress: a caller may listen, and decides how to show the lines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from weft.app.lib.arguments import KINDS, LIMITS, ForTool, Option, natural, positive, ratio_of, workers

if TYPE_CHECKING:
    from weft.solver.cpsat.budget import Budget, Pace


#: Whether collectives may overlap computation: not at all, or as placed by the search.
OVERLAP = ("none", "auto")

#: The meaning of each objective, in the help of a command.
MEANING = {"makespan": "the least time of a step", "span": "the least time until the next step can begin",
           "rate": "the least time per micro-batch of the steady state",
           "latency": "the least time of one micro-batch, under a floor of throughput"}

#: The share of the time limit for reading a source and making its placements.
_PREPARATION = 0.4

_command_began: ContextVar[float | None] = ContextVar("command_began", default=None)


def require_count(name: str, value: object, least: int = 1) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number valid as a count."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, it must be a whole number of at least {least}")
    if not least <= int(value) < 2**31:
        raise ValueError(f"{name} is {value}, it must be at least {least}" + (
            f" and at most {2**31 - 1}" if int(value) > least else ""))


@contextlib.contextmanager
def command_began(at: float) -> Iterator[None]:
    """Context in which time limits count from ``at`` (by :func:`time.monotonic`), the start of the whole command."""
    token = _command_began.set(at)
    try:
        yield
    finally:
        _command_began.reset(token)


def began() -> float:
    """The start of the current command, or now if a function is called from Python."""
    at = _command_began.get()
    return time.monotonic() if at is None else at


_EFFORT = Option("limit CP-SAT's deterministic time instead of the clock: the run repeats exactly", "SECONDS", positive,
                 group=LIMITS)
_SEED = Option("random seed (default: 0)", "N", natural, group=LIMITS)


class PointKeywords(TypedDict, total=False):
    """The limits of each of many searches."""

    time_limit: Annotated[float | None, Option(
        "time limit of each solve (default: 10, none with --effort)", "SECONDS", positive)]
    effort: Annotated[float | None, _EFFORT]
    seed: Annotated[int, _SEED]


class LimitKeywords(TypedDict, total=False):
    """The limits of a search, as keywords for functions to which its other options do not apply."""

    time_limit: float
    effort: float | None
    seed: int
    workers: int


class SearchKeywords(LimitKeywords, total=False):
    """The fields of :class:`SearchOptions` as keywords of public functions."""

    objective: str
    tool: str | None
    reorder: bool
    any_class: bool
    ratio: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``time_limit``: seconds on the clock. ``effort``: CP-SAT's deterministic time (about seconds) for all its runs
    together, so that a ``seed`` with one worker repeats a run exactly; ``None``: only the clock counts. ``workers``:
    CP-SAT's threads. ``objective``: what a schedule is searched for, one of ``makespan``, ``span``, ``rate`` and
    ``latency`` (:data:`weft.solver.schedule.OBJECTIVES`). ``tool``: the one whose schedules alone are searched, timed
    in the order that it runs. Of block problems whose micro-batches differ: ``reorder``,
    whether those of a job may run in another order than the one given; ``any_class``, whether the search decides of
    which class each is; ``ratio``, how many of each job make a round
    that repeats (default: as few as can be). ``pace``: what an effort counts for a solve by CP-SAT (default: CP-SAT's
    own deterministic time alone). ``started``: since when the time limit counts, by
    :func:`time.monotonic`; every public function sets it anew.
    """

    time_limit: Annotated[float, Option("end the search after this time", "SECONDS", positive, group=LIMITS)] = 60.0
    effort: Annotated[float | None, _EFFORT] = None
    seed: Annotated[int, _SEED] = 0
    workers: Annotated[int, Option("CP-SAT workers", "N", workers, group=LIMITS)] = 1
    objective: Annotated[str, Option("what to search for: ")] = "makespan"
    tool: ForTool = None
    reorder: Annotated[bool, Option("micro-batches that differ may run in any order", group=KINDS)] = False
    any_class: Annotated[bool, Option("the search chooses the class of each micro-batch; -n gives their number",
                                      group=KINDS)] = False
    ratio: Annotated[Mapping[str, int] | None, Option(
        "micro-batches of each job in a round, which repeats (default: as few as can be)", "A=P,B=Q", ratio_of,
        group=KINDS)] = None
    pace: Pace | None = None
    started: float = field(default_factory=began, compare=False)

    def require_meaning(self) -> None:
        """Raise ``ValueError`` for a meaningless value."""
        for name in ("time_limit", "effort"):
            value = getattr(self, name)
            if value is None and name == "effort":
                continue
            if not isinstance(value, Real) or isinstance(value, bool) or not float(value) >= 0:
                raise ValueError(f"{name} is {value!r}, it must be a number of seconds, 0 or more")
        require_count("seed", self.seed, least=0)
        require_count("workers", self.workers)

    @property
    def settings(self) -> dict[str, Any]:
        """All fields except the start: the settings that make runs equal."""
        return {"time_limit": self.time_limit, "effort": self.effort, "seed": self.seed, "workers": self.workers}

    @property
    def limits(self) -> dict[str, Any]:
        """Those of a search that begins now, with what is left of the time."""
        return {**self.settings, "time_limit": self.left}

    @property
    def left(self) -> float:
        """Seconds left of the time limit, more than 0."""
        return max(1e-3, self.time_limit - (time.monotonic() - self.started))

    @property
    def is_late(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() - self.started >= self.time_limit

    @property
    def for_preparation(self) -> float:
        """Seconds left for reading and making placements, 0 or more."""
        until = self.started + self.time_limit * (_PREPARATION if self.effort is None else 1.0)
        return max(0.0, until - time.monotonic())

    def restarted(self, seconds_used: float = 0.0) -> SearchOptions:
        """The same options starting now, on this machine, with ``seconds_used`` of the time limit used up."""
        return replace(self, started=time.monotonic() - seconds_used)

    def shortened(self, share: float) -> SearchOptions:
        """The same with ``share`` of the remaining time limit; unchanged if an effort limits the search."""
        if self.effort is not None or share == 1.0:
            return self
        return replace(self, time_limit=self.time_limit - (1 - share) * self.left)

    def limited(self, share: float) -> SearchOptions:
        """The same with ``share`` of the remaining time limit, or of the effort if one limits the search."""
        return self.shortened(share) if self.effort is None else replace(self, effort=self.effort * share)

    def budget(self) -> Budget:
        """The budget of the search, part of which may be used up."""
        from weft.solver.cpsat.budget import Budget, Pace

        return Budget(seconds=self.time_limit, deterministic=self.effort, seed=self.seed, workers=self.workers,
                      started=self.started, pace=self.pace or Pace())

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Context in which reading and making placements stop at their checkpoints when their share of the time is
        over, with :class:`~weft.solver.feasibility.infeasible.NoneFound`."""
        from weft.solver.control.clock import OutOfTime, is_over, watching
        from weft.solver.feasibility.infeasible import NoneFound

        try:
            with watching(lambda: self.for_preparation <= 0):
                yield
        except OutOfTime:
            if is_over():  # by an enclosing watch
                raise
            raise NoneFound("the time limit is too short to make a placement; give more time") from None


def parted(keywords: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``keywords`` with these ``names``, and the others."""
    return ({name: value for name, value in keywords.items() if name in names},
            {name: value for name, value in keywords.items() if name not in names})


@dataclass(frozen=True, slots=True)
class OptionsTaken:
    """The search options of a public function, beside the type of its ``options``: its default ``time_limit``; its
    supported ``objectives``; whether it supports ``tools``; and whether it reads the options for micro-batches that
    differ, and they are ``offered`` in a shell: options that it always refuses are not."""

    time_limit: float = 60.0
    objectives: tuple[str, ...] = ("makespan",)
    tools: bool = False
    differing: bool = False
    offered: bool = True

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of :class:`SearchOptions` available as shell options."""
        return (*(["objective"] if len(self.objectives) > 1 else []), *(["tool"] if self.tools else []),
                *(["reorder", "any_class", "ratio"] if self.differing and self.offered else []),
                "time_limit", "effort", "seed", "workers")

    def given(self, options: SearchOptions | None, keywords: Mapping[str, object]) -> SearchOptions:
        """The function's options: ``options``, or the defaults with its time limit, overridden by ``keywords``. The
        time limit counts from now, or from the start of the command.

        Raises ``TypeError`` for an unknown keyword, and ``ValueError`` for a meaningless value.
        """
        for name in keywords:
            if name not in SearchKeywords.__annotations__:
                raise TypeError(f"got an unexpected keyword argument {name!r}; a search has "
                                f"{', '.join(SearchKeywords.__annotations__)}")
        if not isinstance(options, SearchOptions | None):
            raise ValueError(f"options is {options!r}, it must be a weft.SearchOptions")
        found = replace(SearchOptions(time_limit=self.time_limit) if options is None else options, started=began(),
                        **cast(SearchKeywords, keywords))
        found.require_meaning()
        if found.objective not in self.objectives:
            raise ValueError(f"objective is {found.objective!r}, it must be " + (
                self.objectives[0] if len(self.objectives) == 1 else f"one of {', '.join(self.objectives)}") + " here")
        if found.tool is not None and not self.tools:
            raise ValueError("tool is for solve: leave it out here")
        for name in () if self.differing else ("reorder", "any_class", "ratio"):
            if getattr(found, name):
                raise ValueError(f"{name} is for solve, compare, explain and latency: leave it out here")
        return found


#: Seconds to order, time, judge, summarise and write one operation: 15 s of one core for two million.
_SECONDS_EACH = 7.5e-6

_listener: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Context in which ``listener`` receives every notice, a line without its newline."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def forewarn(operations: int, elapsed: float, limit: float) -> None:
    """Give notice immediately if a first schedule of this many ``operations`` takes longer than ``limit`` seconds."""
    listener, seconds = _listener.get(), _SECONDS_EACH * operations
    if listener is not None and elapsed + seconds > limit:
        listener(f"{elapsed:6.1f} s  {operations} operations: to schedule, judge and write them takes about "
                 f"{elapsed + seconds:.0f} s, longer than the limit of {limit:g} s; the first schedule is finished all "
                 "the same")
