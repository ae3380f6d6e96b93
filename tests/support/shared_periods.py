"""Shared periods against trying every start: random jobs on the same GPUs, at given ratios and with limited slowdowns.

Two or three jobs of up to three blocks on one or two GPUs with a lane each, some with memory, at ratios of up to two
steps (:mod:`tests.oracles.shared`). *Period*: the least that is found, and proven, rounded up, against the least of all
starts; jobs that do not fit together against none. *Slowdown*: the largest that a job has at that period is allowed
when it is asked for, and not when a thousandth less is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tests.oracles.shared import TooLarge, drawn_jobs, least_shared_period
from weft.app.lib.options import SearchOptions
from weft.app.share.result import Sharing
from weft.app.share.search import Question, share_jobs
from weft.models.share.job import Job, SharingError
from weft.solver.feasibility.infeasible import Infeasible, NoneFound

#: Two numbers closer than this share are one: the tolerance of what is proven.
NEAR = 1e-6


def in_turn(jobs: Sequence[Job], ratio: Sequence[int]) -> int:
    """A period in which all steps of a round run one after another."""
    return sum(steps * int(sum(block.duration + max((wait.lag for wait in block.after), default=0)
                               for block in job.problem.plain().blocks))
               for job, steps in zip(jobs, ratio, strict=True))


def compared(number: int, effort: float, counts: Counter[str]) -> list[str]:
    """What differs for set ``number``."""
    jobs, ratio = drawn_jobs(number)
    try:
        least = least_shared_period(jobs, ratio, in_turn(jobs, ratio))
    except TooLarge:
        counts["too large"] += 1
        return []
    try:
        found = shared(jobs, Question(list(ratio)), effort)
    except SharingError as error:
        counts["nothing shared" if "nothing to share" in str(error) else "do not fit"] += 1
        return [] if least is None or "nothing to share" in str(error) else [f"{number}: refused, and {least} is there"]
    except Infeasible:
        counts["do not fit"] += 1
        return [] if least is None else [f"{number}: refused, and {least} is there"]
    counts["compared"] += 1
    counts["with memory"] += any(amount is not None for amount in jobs[0].capacity)
    counts["no whole number"] += abs(found.round.period - round(found.round.period)) > NEAR
    faults = []
    if least is None or math.ceil(found.round.period - NEAR) != least:
        faults.append(f"{number}: period {found.round.period}, and {least} by trying all")
    if not found.round.proven:
        faults.append(f"{number}: {found.round.period} is not proven")
    return faults + limited(number, jobs, ratio, found, effort, counts)


def limited(number: int, jobs: Sequence[Job], ratio: Sequence[int], found: Sharing, effort: float,
            counts: Counter[str]) -> list[str]:
    """What is wrong with the largest slowdown as a limit, and a thousandth less."""
    largest = max(job.slowdown for job in found.jobs)
    faults = []
    again = shared(jobs, Question(list(ratio), max_slowdown=largest), effort)
    counts["limits kept"] += 1
    if abs(again.round.period - found.round.period) > NEAR * found.round.period:
        faults.append(f"{number}: {again.round.period} where a slowdown of {largest} is allowed, not "
                      f"{found.round.period}")
    if largest * 0.999 < 1:
        return faults
    try:
        again = shared(jobs, Question(list(ratio), max_slowdown=largest * 0.999), effort)
        faults.append(f"{number}: {again.round.period} breaks the limit {largest * 0.999}")
    except NoneFound:
        faults.append(f"{number}: whether a slowdown of {largest * 0.999} can be kept was left open")
    except Infeasible:
        counts["limits refused"] += 1
    return faults


def shared(jobs: Sequence[Job], question: Question, effort: float) -> Sharing:
    """The answer within so many deterministic seconds."""
    return share_jobs(jobs, question, SearchOptions(time_limit=3000, effort=effort))
