"""The sweep: every point's case is loaded from the cache or solved on an executor, and its row kept.

The cache is read and written here, not by the workers, which may be on machines without a shared file system.

Points that a sweep adds: if a known schedule needs less memory than weft's points and is not slower.

A search under a cap has no reason to use less than the cap, so between two caps a known schedule can look better than
it is. At a cap equal to that schedule's memory, with its placement among those searched, weft's answer is never worse.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.app.lib.case import Case, CasePlacement, case_of
from weft.app.lib.options import OptionsTaken, SearchOptions, require_count
from weft.app.lib.sources import read_source
from weft.app.sweep.cache import Cache, Solved, cache_of, key_of, solve_point
from weft.app.sweep.points import Axes, ChangedSource, variants_of, with_memory
from weft.app.sweep.result import KnownPoint, LeftOut, Sweep, SweepRow, row_of
from weft.models.spec.spec import SpecError
from weft.models.times.profiles import ProfileError
from weft.solver.control.parallel import cores
from weft.solver.control.parallel import processes as process_pool
from weft.solver.control.stopping import STOP, breakable, shielded
from weft.solver.problem import Number, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible
from weft.text.tables import non_dominated

if TYPE_CHECKING:
    from weft.app.lib.sources import PathLike, Source


#: An added point can bring known schedules, on its own placements, that require another.
_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """A point has been settled: its result, whether it came from the cache, and everything settled so far."""

    sweep: Sweep
    result: SweepRow | LeftOut
    cached: bool
    elapsed: float

    @property
    def done(self) -> int:
        """The number of settled points."""
        return len(self.sweep.rows) + len(self.sweep.left_out)


def options_of_points(options: SearchOptions | None, keywords: Mapping[str, Any]) -> SearchOptions:
    """The search options of each point of a sweep: ``options``, overridden by ``keywords``. The default time limit is
    longer if an effort should end the search."""
    stated = {name: value for name, value in keywords.items() if name != "time_limit" or value is not None}
    return OptionsTaken(10.0 if stated.get("effort") is None else 3600.0).given(options, stated)


def sweep_source(
    source: Source,
    axes: Axes,
    options: SearchOptions,
    on_progress: Callable[[SweepProgress], None],
    *,
    executor: Executor | None,
    processes: int | None,
    cache: PathLike | bool | None,
    refine: bool,
) -> Sweep:
    """See :func:`weft.sweep`. The ``options`` apply to each point; ``processes`` points are solved in parallel."""
    if processes is not None:
        require_count("workers", processes)
    for name, value in (("time_limit", options.time_limit), ("effort", options.effort)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value!r}, it must be greater than 0")
    source = read_source(source)
    if isinstance(source, Problem) and not source.is_plain:
        raise ValueError(f"{source.name}: a sweep is of a model or of a block problem without choices, jobs and "
                         "classes; solve it for each value")
    variants, work = variants_of(source, axes)
    units = (source.time_unit, source.memory_unit) if isinstance(source, Problem) else ("s", "B")
    settings = {"time_limit": options.time_limit, "effort": options.effort, "seed": options.seed}
    blank = Sweep(source.name, len(variants[0].point.memory), *units, work, settings=settings)
    run = _SweepRun(variants, options, cache_of(cache), blank, on_progress)
    with contextlib.ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(process_pool(processes or cores(), len(variants)))
        run.over(executor, refine)
    found = run.sweep
    if not found.rows:
        if found.interrupted:
            raise KeyboardInterrupt
        raise run.refusal
    return found


def lost_worker(cache: Cache | None) -> ChildProcessError:
    """The error for the caller when a worker died."""
    return ChildProcessError(
        "a worker process ended unexpectedly (it may have run out of memory)"
        + ("" if cache is None else "; what was solved is cached, the same command goes on from there"))


@dataclass(frozen=True, slots=True)
class _Task:
    index: int
    key: str


class _SweepRun:
    """One sweep while it runs: the settled points, by number."""

    def __init__(self, variants: list[ChangedSource], options: SearchOptions, cache: Cache | None, blank: Sweep,
                 on_progress: Callable[[SweepProgress], None]) -> None:
        self.variants, self.options, self.cache, self.on_progress = variants, options, cache, on_progress
        self.rows: dict[int, SweepRow] = {}
        self.left_out: dict[int, LeftOut] = {}
        self.notes: list[str] = []
        self.cached = 0
        self.refusal: ValueError = Infeasible("")
        self._blank = blank
        self._requested = len(variants)
        self._cases: dict[int, Case] = {}
        self._keys: set[str] = set()
        self._solved: dict[int, Solved] = {}
        self._pending: dict[Future[Solved | str], _Task] = {}
        self._started = time.monotonic()

    @property
    def sweep(self) -> Sweep:
        """The sweep of the points settled so far."""
        unsolved = [variant.point for i, variant in enumerate(self.variants)
                    if i not in self.rows and i not in self.left_out]
        return replace(self._blank, rows=tuple(self.rows[i] for i in sorted(self.rows)),
                       left_out=tuple(self.left_out[i] for i in sorted(self.left_out)), unsolved=tuple(unsolved),
                       cached=self.cached, notes=tuple(self.notes))

    def over(self, executor: Executor, refine: bool) -> None:
        """Settle every point, and those added by ``refine``; Ctrl-C ends it and leaves points unsolved."""
        try:
            with breakable():
                self._settle(range(len(self.variants)), executor)
                rounds = _ROUNDS if refine else 0
                while rounds and (added := self._refine()):
                    self._settle(added, executor)
                    rounds -= 1
        except KeyboardInterrupt:
            self._pending = {future: task for future, task in self._pending.items() if not future.cancel()}
            self._collect_the_rest()
        except BrokenExecutor:
            if STOP.requested:  # the workers were stopped, too
                return
            raise lost_worker(self.cache) from None

    def _settle(self, indices: range, executor: Executor) -> None:
        for index in indices:
            self._begin(index, executor)
            self._collect(timeout=0)
        while self._pending:
            self._collect(timeout=None)

    def _refine(self) -> range:
        """Add a point for each known schedule that is ahead of all rows and of all other known schedules."""
        ahead = set(self.sweep.ahead)
        rivals = [(known, index) for index in sorted(self.rows) for known in self.rows[index].known if known in ahead]
        first = len(self.variants)
        seen: set[KnownPoint] = set()
        for i in non_dominated([(known.peak, known.throughput) for known, _ in rivals]):
            known, index = rivals[i]
            if known not in seen:
                seen.add(known)
                variant, case = tightened(self.variants[index], self._cases[index],
                                          self._solved[index].known[known.name])
                if (key := key_of(case, self.options)) not in self._keys:  # two that tie lead to one case
                    self._keys.add(key)
                    self._cases[len(self.variants)] = case
                    self.variants.append(variant)
        return range(first, len(self.variants))

    def _begin(self, index: int, executor: Executor) -> None:
        """Settle a point without search if that is possible, else hand it to ``executor``."""
        options = self.options.restarted()
        if index not in self._cases:
            try:
                variant = self.variants[index]
                with options.preparing():
                    self._cases[index] = case_of(variant.source, variant.point.micro_batches)
            except (Infeasible, SpecError, ProfileError) as error:
                self._leave_out(index, error)
                return
        case = self._cases[index]
        key = key_of(case, self.options)
        self._keys.add(key)
        known = None if self.cache is None else self.cache.load(key, case)
        if known is not None:
            self.cached += 1
            self._keep(index, known, cached=True)
            return
        used = time.monotonic() - options.started
        self._pending[executor.submit(solve_point, case, options, used)] = _Task(index, key)

    def _collect(self, timeout: float | None) -> None:
        """Collect solved points; ``timeout`` ``None`` waits for at least one."""
        done, _ = wait(self._pending, timeout, FIRST_COMPLETED)
        for future in sorted(done, key=lambda future: self._pending[future].index):
            with shielded():  # from pending to settled, and to disk
                self._take(future, self._pending.pop(future))

    def _take(self, future: Future[Solved | str], task: _Task) -> None:
        if future.cancelled():
            return
        try:
            result = future.result()
        except ImportError as error:
            raise ImportError(f"a worker cannot import what it needs ({error}): install weft there") from error
        if isinstance(result, str):
            self._leave_out(task.index, Infeasible(result))
            return
        self._save(task.key, result)
        self._keep(task.index, result, cached=False)

    def _collect_the_rest(self) -> None:
        """Collect the points solved when the sweep was interrupted; workers that were interrupted as well report it."""
        while any(future.done() for future in self._pending):
            with contextlib.suppress(KeyboardInterrupt, BrokenExecutor):
                self._collect(timeout=0)

    def _save(self, key: str, solved: Solved) -> None:
        if self.cache is None:
            return
        try:
            self.cache.save(key, solved)
        except OSError as error:  # results are worth more than their cache
            self.notes.append(f"not cached: {error.filename or self.cache.folder}: {error.strerror or error}")
            self.cache = None

    def _keep(self, index: int, solved: Solved, *, cached: bool) -> None:
        self._solved[index] = solved
        self.rows[index] = row_of(self.variants[index], solved, added=index >= self._requested)
        self._report(self.rows[index], cached)

    def _leave_out(self, index: int, error: ValueError) -> None:
        if not self.left_out or isinstance(error, Infeasible):
            self.refusal = error
        self.left_out[index] = LeftOut(self.variants[index].point, str(error))
        self._report(self.left_out[index], cached=False)

    def _report(self, result: SweepRow | LeftOut, cached: bool) -> None:
        self.on_progress(SweepProgress(self.sweep, result, cached, time.monotonic() - self._started))


def tightened(variant: ChangedSource, case: Case, known: Schedule) -> tuple[ChangedSource, Case]:
    """``variant`` on GPUs with no more memory than ``known``, a schedule of ``case``, needs; and the case to search.

    Its placements are those of a search at this memory, and that of ``known``.
    """
    need = _enough(max(known.peak_with_static)) + variant.reserve
    tighter = variant.with_memory(tuple(need if amount is None else min(amount, need)
                                        for amount in variant.point.memory))
    own = next((_squeezed(placement, tighter) for placement in case.placements if placement.whole == known.problem),
               None)  # none: the whole model on every GPU, which the tighter case includes if it fits
    try:
        again = case_of(tighter.source, tighter.point.micro_batches)
    except Infeasible:
        again = Case(case.name, (), case.micro_batches)
    placements = again.placements
    if own is not None and all(placement.problem != own.problem for placement in placements):
        placements = (*placements, own)
    return tighter, Case(case.name, placements, case.micro_batches, whole_model=again.whole_model)


def _squeezed(placement: CasePlacement, variant: ChangedSource) -> CasePlacement:
    """``placement`` with the memory that ``variant`` leaves its blocks."""
    static = placement.details.get("static_memory", [0] * len(variant.point.memory))
    usable = [None if amount is None else amount - variant.reserve
              for amount in variant.point.memory[:len(static)]]  # of a grid's identical GPUs one a stage
    memory = [None if amount is None else amount - held for amount, held in zip(usable, static, strict=True)]
    if placement.gpus:  # a device represents identical GPUs
        memory = [memory[group[0]] for group in placement.gpus]
    details = dict(placement.details)
    if "gpu_memory" in details:
        details["gpu_memory"] = usable
    return replace(placement, problem=with_memory(placement.problem, memory), details=details)


def _enough(amount: Number) -> Number:
    """``amount``, a floating-point sum rounded up: the judge adds exactly."""
    return amount if isinstance(amount, int) else math.nextafter(amount * (1 + 1e-12), math.inf)
