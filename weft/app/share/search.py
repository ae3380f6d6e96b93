"""The search for the best sharing of GPUs by jobs: each alone first, then all at one ratio after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.app.lib.options import SearchOptions, require_count
from weft.app.lib.sources import Source
from weft.app.share.fits import require_fit
from weft.app.share.jobs import filling_ratios, jobs_of, ratio_given, slowdowns_given, small_ratios
from weft.app.share.result import PROOF_TOLERANCE, JobShare, RatioTried, Sharing, Timed
from weft.models.share.job import Job, SharingError, composed, one_at_a_time, require_same_gpus
from weft.runtime.plan.lanes import collective_rows
from weft.runtime.plan.plan import plan_of
from weft.solver.choices.solve import solve_run
from weft.solver.control.stopping import STOP
from weft.solver.feasibility.infeasible import Infeasible, NoneFound, NoWholePeriod
from weft.solver.judge.collective_order import collective_order_faults
from weft.solver.judge.validate import InvalidSchedule, validate
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress

#: Default rounds of a schedule; for a longer steady state twice as many, up to this many.
ROUNDS, _MOST_ROUNDS = 8, 256
#: The share of the time for the jobs alone.
_ALONE = 0.3
#: Seconds for every search of a period, if available: most are proven in less.
_LEAST_SECONDS = 4.0
#: Maximum operations of all rounds in a search: more take longer to time and judge than the search has.
_MOST_OPERATIONS = 20_000
#: Minimum seconds of a search, even if the time is over.
_IN_ANY_CASE = 0.5
#: A search that gave up before this share of its time had too few rounds.
_GAVE_UP = 0.8


@dataclass(frozen=True)
class Question:
    """The options of jobs that share GPUs: their ``ratio`` (``None``: small ones are tried), the permitted slowdown of
    each, the number of ``rounds`` in the schedule (``None``: as many as its steady state needs), and whether a spec
    runs ``data`` parallel, as a ``pipeline``, or whichever fits (``auto``)."""

    ratio: str | Sequence[int] | Mapping[str, int] | None = None
    max_slowdown: float | Mapping[str, float] | None = None
    rounds: int | None = None
    parallel: str = "auto"


def share_sources(sources: Sequence[Source], question: Question, options: SearchOptions,
                  on_progress: Callable[[Progress], None] = lambda _: None) -> Sharing:
    """See :func:`weft.share`."""
    if question.rounds is not None:
        require_count("rounds", question.rounds)
    jobs = jobs_of(sources, question.parallel, options)
    return share_jobs(jobs, question, options, on_progress)


def share_jobs(jobs: Sequence[Job], question: Question, options: SearchOptions,
               on_progress: Callable[[Progress], None] = lambda _: None) -> Sharing:
    """The best sharing of GPUs by ``jobs``, which are in one unit.

    Raises :class:`~weft.models.share.job.SharingError` for jobs that cannot share and meaningless options, and
    :class:`~weft.solver.feasibility.infeasible.Infeasible` if they do not fit together or one gets too slow.
    """
    return _SharingSearch(jobs, question, options, on_progress).result()


class _SharingSearch:
    """One search, from the checks to the answer."""

    def __init__(self, jobs: Sequence[Job], question: Question, options: SearchOptions,
                 on_progress: Callable[[Progress], None]) -> None:
        self.jobs, self.question, self.options, self.on_progress = tuple(jobs), question, options, on_progress
        names = [job.name for job in jobs]
        self.ratios = (small_ratios(len(jobs)) if question.ratio is None else [ratio_given(question.ratio, names)])
        self.limits = slowdowns_given(question.max_slowdown, names)
        _require_few(question.rounds, jobs)
        require_same_gpus(jobs)
        self.notes = _notes(jobs)
        require_fit(jobs, options.budget())
        self.together = composed(jobs)
        self.interrupted = False
        self._found = False  # whether any steady state of all of them is known
        self._known: dict[tuple[int, int, int], Timed] = {}
        self._ever: dict[tuple[int, int], float] = {}  # lower bounds on steps, for any repetition

    def result(self) -> Sharing:
        """The ratio with the largest speed-up among those considered at which no job gets too slow."""
        single, _ = self._alone((1,) * len(self.jobs))  # jobs without any steady state are reported first
        if self.question.ratio is None and not self.together.choices:
            work = [self._work(job.name) for job in self.jobs]
            self.ratios = [*self.ratios, *filling_ratios([timed.period for timed in single], work)]
        tried: list[RatioTried] = []
        best: Sharing | None = None
        for number, ratio in enumerate(self.ratios):
            own, bare = self._alone(ratio)
            least = self._least(ratio, own)
            turn = sum(steps * timed.period for steps, timed in zip(ratio, own, strict=True))
            slow = self._too_slow(ratio, least, own)
            if best is not None and turn / least <= best.speedup * (1 + RELATIVE_TOLERANCE):
                tried.append(RatioTried(ratio, None, None, f"x {turn / least:.3f} at most"))
                continue
            if slow is not None or self.interrupted:
                tried.append(RatioTried(ratio, None, None, slow or "not looked at: interrupted"))
                continue
            found = self._steady(self.together, ratio, 1 / (len(self.ratios) - number), own)
            if found is None:
                rounds = self.question.rounds
                tried.append(RatioTried(ratio, None, None, "no steady state was found in time" + (
                    "" if rounds is None else f" with {rounds} rounds; give fewer rounds")))
                continue
            timed = _timed(found)
            slow = self._too_slow(ratio, timed.period, own)
            tried.append(RatioTried(ratio, timed, turn / timed.period, slow or "less"))
            if slow is None and (best is None or turn / timed.period > best.speedup):
                best = self._sharing(ratio, timed, own, bare, found)
        if best is None:
            raise self._refusal(tried)
        spent = time.monotonic() - self.options.started
        return replace(best, tried=tuple(replace(entry, reason="the answer") if entry.ratio == best.ratio else entry
                                         for entry in tried), seconds=spent, interrupted=self.interrupted)

    # -- periods -------------------------------------------------------------------------------------------------------

    def _alone(self, ratio: Sequence[int]) -> tuple[list[Timed], list[Timed]]:
        """Each job's best step time with the GPUs to itself, and without its own overlap, with as many steps repeating
        together as in ``ratio``: alone, a job has the same freedom as beside others."""
        own, bare = [], []
        runs = 2 * len(self.jobs)
        for number, (job, steps) in enumerate(zip(self.jobs, ratio, strict=True)):
            problem = composed([job])
            own.append(self._of_steps(problem, job, steps, _ALONE / (runs - 2 * number)))
            in_line = one_at_a_time(problem)
            bare.append(own[-1] if in_line == problem else
                        self._of_steps(in_line, job, steps, _ALONE / (runs - 2 * number - 1)))
        return own, bare

    def _of_steps(self, problem: Problem, job: Job, steps: int, share: float) -> Timed:
        """The time of a step of ``problem`` if ``steps`` repeat together; cached."""
        key = id(job), len(problem.devices), steps
        if key not in self._known:
            one = None if steps == 1 else self._of_steps(problem, job, 1, share)
            if one is not None and one.period <= self._ever[key[:2]] * (1 + PROOF_TOLERANCE):
                self._known[key] = one  # nothing is better, for any number of repeated steps
            else:
                found = self._steady(problem, (steps,), share, None)
                if found is None and one is None:
                    raise NoneFound(f"{job.name}: no steady state was found within the limit; give it more time")
                self._known[key] = self._of_found(key, found, steps, one)
        return self._known[key]

    def _of_found(self, key: tuple[int, int, int], found: Schedule | None, steps: int, one: Timed | None) -> Timed:
        if found is not None and steps == 1:
            self._ever[key[:2]] = min(found.value, found.value_bound)
            return _timed(found)
        assert one is not None
        timed = None if found is None else _timed(found)
        period = one.period if timed is None else min(one.period, timed.period / steps)
        bound = max(self._ever[key[:2]], 0.0 if timed is None else timed.bound / steps)
        return Timed(period, min(period, bound))

    def _steady(self, problem: Problem, ratio: Sequence[int], share: float, own: Sequence[Timed] | None
                ) -> Schedule | None:
        """The schedule with the least period found within ``share`` of the remaining time."""
        jobs = problem.jobs
        steps = dict(zip(jobs, ratio, strict=True))
        given = None if own is None else self.question.rounds  # for a job alone only the period counts
        rounds = given or ROUNDS
        effort = None if self.options.effort is None else self.options.effort * share
        until = max(self.options.left * share, min(_LEAST_SECONDS, self.options.left),
                    _IN_ANY_CASE if own is None or not self._found else 0.0)
        while True:
            began = time.monotonic()
            try:
                found = solve_run(problem, {job: count * rounds for job, count in steps.items()}, ratio=steps,
                                   objective="rate", on_progress=self.on_progress if own is not None else _silent,
                                   **{**self.options.settings, "time_limit": until, "effort": effort})
            except NoneFound as error:
                few = isinstance(error, NoWholePeriod)
                self.interrupted |= STOP.requested
                if self.interrupted or (not few and time.monotonic() - began > _GAVE_UP * until):
                    return None
                if given is not None or rounds >= _MOST_ROUNDS:
                    raise _too_few(rounds) from None
                if time.monotonic() - self.options.started >= self.options.time_limit:
                    return None
                rounds *= 2
                continue
            self.interrupted |= bool(found.solver.get("interrupted"))
            _require_sound(found, problem)
            self._found |= own is not None
            return found

    def _least(self, ratio: Sequence[int], own: Sequence[Timed]) -> float:
        """A lower bound on the period at ``ratio``: a device's work, and the steps of each job alone."""
        least = max(steps * timed.bound for steps, timed in zip(ratio, own, strict=True))
        if self.together.choices:
            return least
        steps = dict(zip(self.together.jobs, ratio, strict=True))
        each = [[steps[job] * amount for amount in self._work(job)] for job in self.together.jobs]
        return max(least, *map(sum, zip(*each, strict=True)))

    def _work(self, job: str) -> list[float]:
        """The work of a step of ``job``, which has no choices, on each device."""
        work = [0.0] * len(self.together.devices)
        for block in self.together.blocks:
            if block.job == job:
                for device in block.devices:
                    work[device] += block.duration
        return work

    def _too_slow(self, ratio: Sequence[int], period: float, own: Sequence[Timed]) -> str | None:
        """The job that exceeds its slowdown limit if a round takes ``period``; ``None`` if none does."""
        for job, steps, timed in zip(self.jobs, ratio, own, strict=True):
            limit = self.limits.get(job.name)
            if limit is not None and period > limit * steps * timed.period * (1 + RELATIVE_TOLERANCE):
                return (f"{job.name} takes {period / steps / timed.period:.3f} times as long as alone, more than "
                        f"{limit:g}")
        return None

    # -- results ------------------------------------------------------------------------------------------------

    def _sharing(self, ratio: Sequence[int], found: Timed, own: Sequence[Timed], bare: Sequence[Timed],
                 schedule: Schedule) -> Sharing:
        turn = sum(steps * timed.period for steps, timed in zip(ratio, own, strict=True))
        turn_bare = sum(steps * timed.period for steps, timed in zip(ratio, bare, strict=True))
        jobs = tuple(JobShare(job.name, job.kind, steps, alone, without, found.period / steps, turn / steps,
                              turn_bare / steps, job.micro_batches)
                     for job, steps, alone, without in zip(self.jobs, ratio, own, bare, strict=True))
        made = Sharing(self.together.name, self.together.time_unit, found, jobs, schedule, notes=self.notes,
                       seed=self.options.seed)
        return replace(made, schedule=schedule.with_solver(share=made.to_json()))

    def _refusal(self, tried: Sequence[RatioTried]) -> Infeasible:
        """The reason for a missing answer: ratios proven too slow, and ratios without a schedule."""
        proven = all("times as long" in entry.reason if entry.found is None else
                     self._too_slow(entry.ratio, entry.found.bound, self._alone(entry.ratio)[0]) is not None
                     for entry in tried)
        kind = Infeasible if proven else NoneFound
        reasons = "; ".join(f"{':'.join(map(str, entry.ratio))}: {entry.reason}"
                            + ("" if entry.found is None or entry.found.proven else " in the best that was found")
                            for entry in tried)
        if not self.limits or all(entry.found is None and "times as long" not in entry.reason for entry in tried):
            return NoneFound(f"{self.together.name}: {reasons}; give more time (--time-limit)")
        return kind(f"{self.together.name}: no job may get slower than asked, and some does ({reasons}); allow more "
                    "(--max-slowdown), or another ratio")


def _too_few(rounds: int) -> SharingError:
    return SharingError(f"rounds is {rounds}, too few for the steady state to repeat; give more")


def _require_few(rounds: int | None, jobs: Sequence[Job]) -> None:
    """Refuse more ``rounds`` than can be searched, and one alone, which has no steady state."""
    if rounds == 1:
        raise _too_few(1)
    most = max(1, _MOST_OPERATIONS // sum(len(job.problem.blocks) for job in jobs))
    if rounds is not None and rounds > most:
        raise SharingError(f"rounds is {rounds}, for these jobs it can be {most} at most: the same round repeats, so a "
                           "few show the period")


def _timed(schedule: Schedule) -> Timed:
    """Its period, and a lower bound over steady states that repeat every round."""
    proven = max(schedule.value_bound, schedule.period_bound or 0.0)
    return Timed(schedule.value, min(schedule.value, proven))


def _silent(_: Progress) -> None:
    """Silence progress: a job alone is not an answer."""


def _require_sound(schedule: Schedule, problem: Problem) -> None:
    """Check by the judge, and that all ranks have one order of collectives in the plan."""
    validate(schedule, whole=problem)
    if wrong := collective_order_faults(collective_rows(plan_of(schedule))):
        raise InvalidSchedule(wrong)


def _notes(jobs: Sequence[Job]) -> tuple[str, ...]:
    """Remarks for the reader. Raises :class:`~weft.models.share.job.SharingError` for jobs without a common GPU."""
    names = [device.name for device in jobs[0].problem.devices if device.lane_of is None]
    on = {gpu: [job.name for job in jobs if gpu in job.gpus] for gpu in range(len(names))}
    if all(len(own) < 2 for own in on.values()):
        raise SharingError("no GPU runs two of the jobs (" + "; ".join(
            f"{job.name} on {', '.join(names[gpu] for gpu in sorted(job.gpus))}" for job in jobs)
            + "): there is nothing to share; schedule each by itself")
    notes = [f"{names[gpu]} runs {own[0]} alone: no other job fills what it leaves idle"
             for gpu, own in on.items() if len(own) == 1]
    for job in jobs:
        notes += [f"{job.name}: {note}" for note in job.notes]
        no_lanes = all(device.lane_of is None for device in job.problem.devices)
        if no_lanes and any(len(block.devices) > 1 for block in job.problem.blocks):
            notes.append(f"{job.name}: GPUs that compute a stage together exchange inside its blocks, where no other "
                         "job computes meanwhile")
        if no_lanes and any(
                wait.lag for block in job.problem.blocks for wait in block.after):
            notes.append(f"{job.name}: its transfers are taken to be in nobody's way, whatever the network carries")
    return tuple(dict.fromkeys(notes))
