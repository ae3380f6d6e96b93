"""The time of a search, and the four ways to pass on a part of the rest.

A :class:`Budget` is one account for everything that a command does. It counts seconds on the clock and, if an effort is
given, deterministic seconds: CP-SAT's own measure, and the charges of other techniques by the work they count. With an
effort the clock decides only the end, so that runs repeat. Every part is cut from the rest:

=====================  =====================================================================================
for one solve          :meth:`Budget.share` is a number of deterministic seconds
for several solves     :meth:`Budget.slice` is a :class:`Slice`: it ends by itself, and may limit each solve
for a whole search     :meth:`Budget.part` is a budget of its own; what it uses is charged to the whole
for work without one   :meth:`Budget.limited` ends the work inside at a checkpoint, by the clock alone;
                       :meth:`Budget.kept` is that for a whole command, which Ctrl-C may break off
=====================  =====================================================================================
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from weft.solver.control.clock import OutOfTime, watching
from weft.solver.control.stopping import STOP, breakable

_S = TypeVar("_S")
_T = TypeVar("_T")

#: Seconds to build a model, for each of its Booleans that order two blocks; and the most of them in a model.
_ORDERED, _MOST_ORDERED = 2.5e-5, 500_000


@dataclass(frozen=True, slots=True)
class Pace:
    """The charge for a solve by CP-SAT, in deterministic seconds: ``second`` for each of CP-SAT's own, and
    ``constraint`` for each constraint of its model, which has to be built and loaded. By default only CP-SAT's own
    count."""

    second: float = 1.0
    constraint: float = 0.0

    def charge(self, deterministic: float, constraints: int) -> float:
        """The charge for one solve."""
        return self.second * deterministic + self.constraint * constraints


@dataclass
class Budget:
    """The time limit of a search. ``seconds`` is wall time; ``deterministic`` is CP-SAT's machine-independent measure
    (``None``: unlimited). ``interrupted`` is set by Ctrl-C and by every other requested stop
    (:mod:`weft.solver.control.stopping`); a search that finds it :attr:`spent` returns the best so far.

    ``started``: the time from which the seconds count, by ``now`` (by default now). ``reserve``: seconds at the end
    reserved for the work after the search, such as writing its result. ``pace``: the charge for a solve. ``without``:
    techniques that an ablation omits (:mod:`weft.solver.step.search`).
    """

    seconds: float = float("inf")
    deterministic: float | None = None
    seed: int = 0
    workers: int = 1
    interrupted: bool = False
    started: float = math.nan
    deterministic_used: float = 0.0
    reserve: float = 0.0
    pace: Pace = Pace()
    without: frozenset[str] = frozenset()
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if math.isnan(self.started):
            self.started = self.now()

    @property
    def elapsed(self) -> float:
        """Seconds since the budget's start."""
        return self.now() - self.started

    @property
    def left(self) -> float:
        """Seconds of wall time left, 0 or more; none once a stop was requested."""
        self._look()
        return 0.0 if self.interrupted else max(0.0, self.seconds - self.reserve - self.elapsed)

    @property
    def deterministic_left(self) -> float:
        """Deterministic time left, 0 or more."""
        return float("inf") if self.deterministic is None else max(0.0, self.deterministic - self.deterministic_used)

    @property
    def spent(self) -> bool:
        """Whether the search must stop now."""
        return self.left <= 0 or self.deterministic_left <= 0

    def _look(self) -> None:
        self.interrupted = self.interrupted or STOP.requested

    def suffices(self, pairs: int) -> bool:
        """Whether a model that orders this many ``pairs`` of blocks can be built in half of the time left."""
        return pairs <= _MOST_ORDERED and 2 * _ORDERED * pairs <= self.left

    # -- some of what is left -------------------------------------------------------------------------------------

    def share(self, share: float, at_most: float = math.inf) -> float:
        """Deterministic seconds for one solve: ``at_most``, or ``share`` of the rest if that is less.

        The rest is deterministic time if that is limited, otherwise the clock's: a deterministic second takes about a
        second.
        """
        return min(at_most, share * (self.left if self.deterministic is None else self.deterministic_left))

    def slice(self, at_most: float = math.inf, *, share: float | None = None, each: float = math.inf) -> Slice:
        """A slice from now on: ``at_most`` deterministic seconds, and no more than ``share``, if given, of the rest
        (see :meth:`share`). One solve may take ``each`` of them."""
        return Slice(self, self.deterministic_used + (at_most if share is None else self.share(share, at_most)), each)

    @contextlib.contextmanager
    def part(self, share: float) -> Iterator[Budget]:
        """A budget of ``share`` of the rest: of deterministic time if that is limited, else of the clock's. Its use is
        charged to the whole at the end of the block, and a Ctrl-C during it ends the whole too."""
        limited = self.deterministic is not None
        part = Budget(seconds=self.left if limited else self.share(share), seed=self.seed, workers=self.workers,
                      deterministic=self.share(share) if limited else None, pace=self.pace, without=self.without)
        try:
            yield part
        finally:
            self.deterministic_used += part.deterministic_used
            self.interrupted |= part.interrupted

    @contextlib.contextmanager
    def limited(self, share: float = 1.0) -> Iterator[None]:
        """Work inside stops at its next checkpoint once the wall time is over or the search is interrupted; the code
        after the block still runs. ``share``: it also stops after that share of the time left, unless deterministic
        time is limited, as runs would not repeat then.
        """
        until = self.now() + self.share(share) if self.deterministic is None and share < 1 else math.inf
        with contextlib.suppress(OutOfTime), watching(lambda: self.left <= 0 or self.now() >= until):
            yield

    @contextlib.contextmanager
    def kept(self, anything: Callable[[], bool]) -> Iterator[None]:
        """Work inside is :meth:`limited` and may be broken off by Ctrl-C, which goes on after the block only where
        there is not ``anything`` to keep."""
        begun = False
        try:
            with self.limited(), breakable():
                begun = True
                yield
        except KeyboardInterrupt:
            self.interrupted = True
            if not (begun and anything()):
                raise

    # -- side by side ---------------------------------------------------------------------------------------------

    def side_by_side(self, function: Callable[[_S], _T], items: Iterable[_S]) -> list[_T] | None:
        """``function`` of each of ``items``, in their order, in a thread for each of the ``workers``. ``None`` on
        Ctrl-C: the search is then interrupted."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.workers) as threads:
            try:
                return list(threads.map(function, items))
            except KeyboardInterrupt:
                self.interrupted = True
                return None


@dataclass(frozen=True, slots=True)
class Slice:
    """Some of the deterministic time of a ``budget``, for several solves that end together.

    ``until``: the use of the budget at which it is over. ``each``: the most that one solve may take of it. All in
    deterministic seconds.
    """

    budget: Budget
    until: float = math.inf
    each: float = math.inf

    @property
    def left(self) -> float:
        """The most that the next solve may take, 0 or more."""
        return min(self.each, max(0.0, self.until - self.budget.deterministic_used))

    @property
    def spent(self) -> bool:
        """Whether nothing is left of it, or of the budget."""
        return self.budget.spent or self.left <= 0

    def at_most(self, each: float) -> Slice:
        """The same slice, of which one solve may take at most ``each``, and no more than before."""
        return replace(self, each=min(each, self.each))
