"""Shared periods against trying every start: random jobs on the same GPUs, at given ratios and with limited slowdowns.

    python -m experiments.step.shared_periods [--sets N] [--effort SECONDS]

Two or three jobs of up to three blocks on one or two GPUs with a lane each, some with memory, at ratios of up to two
steps (:mod:`tests.oracles.shared`). *Period*: the least that is found, and proven, rounded up, against the least of all
starts; jobs that do not fit together against none. *Slowdown*: the largest that a job has at that period is allowed
when it is asked for, and not when a thousandth less is. *Ratio*: of two jobs whose steps follow each other, the best
ratio of those tried at which no job takes more than 1.6 times as long as alone. Writes results/shared_periods.json;
exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.lib.provenance import RESULTS, Record
from tests.oracles.shared import TooLarge, drawn_jobs, least_shared_period
from weft.app.lib.options import SearchOptions
from weft.app.share.ratios import small_ratios
from weft.app.share.result import Sharing
from weft.app.share.search import Question, share_jobs
from weft.models.share.job import Job, SharingError
from weft.solver.feasibility.infeasible import Infeasible, NoneFound

#: What a job may take longer than alone, where the ratio is searched for.
LIMIT = 1.6
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


def best_ratio(number: int, effort: float, counts: Counter[str]) -> list[str]:
    """What differs where the ratio is searched for, with a limit on slowdowns."""
    jobs, _ = drawn_jobs(number)
    if len(jobs) != 2 or not all(any(wait.distance for wait in job.problem.plain().blocks[0].after) for job in jobs):
        return []
    speedups: dict[tuple[int, ...], float] = {}
    refusal: Infeasible | None = None
    try:
        found = shared(jobs, Question(None, max_slowdown=LIMIT), effort)
    except SharingError:
        return []
    except Infeasible as error:
        refusal = error
    tried = {*small_ratios(2)} | (set() if refusal is not None else {found.ratio})
    try:
        for ratio in sorted(tried, key=sum, reverse=True):  # the largest take longest, or are too large
            period = least_shared_period(jobs, ratio, in_turn(jobs, ratio))
            alone = [least_shared_period([job], [steps], in_turn([job], [steps]))
                     for job, steps in zip(jobs, ratio, strict=True)]
            if period is not None and None not in alone and all(
                    period <= LIMIT * own * (1 + NEAR) for own in alone if own is not None):
                speedups[ratio] = sum(own for own in alone if own is not None) / period
    except TooLarge:
        return []
    if refusal is not None:
        counts["ratios refused"] += 1
        return [f"{number}: refused, and {max(speedups, key=speedups.__getitem__)} is allowed"] if speedups else []
    counts["ratios compared"] += 1
    if abs(found.round.period - round(found.round.period)) > NEAR:
        return []  # trying whole starts says nothing of it
    best = max(speedups.values(), default=0.0)
    return [] if abs(found.speedup - best) <= NEAR * best else [
        f"{number}: x {found.speedup} at {found.ratio}, and x {best} by trying all"]


def shared(jobs: Sequence[Job], question: Question, effort: float) -> Sharing:
    """The answer within so many deterministic seconds."""
    return share_jobs(jobs, question, SearchOptions(time_limit=600.0, effort=effort))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all, print and write; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", type=int, default=450, help="random job sets")
    parser.add_argument("--ratios", type=int, default=240, help="so many of these have their ratio searched for too")
    parser.add_argument("--effort", type=float, default=2.0, help="deterministic seconds of each search")
    parser.add_argument("--output", type=Path, default=RESULTS / "shared_periods.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    counts: Counter[str] = Counter()
    faults: list[str] = []
    for number in range(options.sets):
        faults += compared(number, options.effort, counts)
        if number < options.ratios:
            faults += best_ratio(number, options.effort, counts)
    print(json.dumps(counts), *faults, sep="\n")
    record.write({"sets": options.sets, "counts": dict(sorted(counts.items())), "faults": faults})
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
