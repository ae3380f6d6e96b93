"""The number of steps of each job in a round: as given by the user, or the small ratios that are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import gcd

from weft.models.share.job import SharingError

#: With more steps of one job than this in a round, two jobs never align.
_MOST = 64
#: Maximum number of short steps beside a long one tried by default: larger rounds take long to search.
_MOST_FILLING = 16
#: Default ratios: the maximum number of steps of a job, by number of jobs.
_TRIED = {2: 3, 3: 2}


def ratio_given(ratio: str | Sequence[int] | Mapping[str, int], jobs: Sequence[str]) -> tuple[int, ...]:
    """The steps of each job in a round by ``ratio``: ``"2:1"``, numbers in the order of the jobs, or by name.

    Raises :class:`~weft.models.share.job.SharingError` for a ratio of other jobs or one that never aligns.
    """
    if isinstance(ratio, Mapping):
        if set(ratio) != set(jobs):
            raise SharingError(f"ratio names {', '.join(map(str, ratio))}, and the jobs are {', '.join(jobs)}")
        parts: Sequence[object] = [ratio[job] for job in jobs]
    else:
        parts = [part.strip() for part in ratio.split(":")] if isinstance(ratio, str) else list(ratio)
    text = ratio if isinstance(ratio, str) else ":".join(map(str, parts))
    if len(parts) != len(jobs):
        raise SharingError(f"ratio is {text}, {len(parts)} number{'s' * (len(parts) != 1)} for {len(jobs)} jobs "
                           f"({', '.join(jobs)}): give one for each, as {':'.join('1' for _ in jobs)}")
    steps = [_steps(part, text) for part in parts]
    common = gcd(*steps)
    steps = [step // common for step in steps]
    if max(steps) > _MOST:
        raise SharingError(f"ratio is {text}: the jobs meet again after {max(steps)} steps of one of them, which no "
                           f"round of up to {_MOST} holds, so they never align; give a ratio of smaller numbers, as "
                           f"{_nearest(steps)}")
    return tuple(steps)


def _steps(part: object, text: str) -> int:
    if isinstance(part, str) and part.isdecimal():
        part = int(part)
    if type(part) is not int or part < 1:
        raise SharingError(f"ratio is {text}, and {part!r:.40} is no whole number of at least 1: a round has whole "
                           "steps, or the jobs never align (3:2 in place of 1.5:1)")
    return part


def _nearest(steps: Sequence[int]) -> str:
    """``steps`` as a ratio of numbers up to 8."""
    scale = 8 / max(steps)
    found = [max(1, round(step * scale)) for step in steps]
    common = gcd(*found)
    return ":".join(str(step // common) for step in found)


def small_ratios(count: int) -> list[tuple[int, ...]]:
    """The ratios tried for ``count`` jobs, the most even ones first."""
    most = _TRIED.get(count, 1)
    found = [steps for steps in product(range(1, most + 1), repeat=count) if gcd(*steps) == 1]
    return sorted(found, key=lambda steps: (max(steps), sum(steps), steps))


def filling_ratios(periods: Sequence[float], work: Sequence[Sequence[float]]) -> list[tuple[int, ...]]:
    """For two jobs with very different step times, the ratio at which the short steps fill the idle time of a long one:
    as many as fit on every device that they use. None if that is a small ratio.

    ``periods``: the time of a step of each alone. ``work``: per job, the work of a step on each device.
    """
    found: list[tuple[int, ...]] = []
    for long, short in ((0, 1), (1, 0)) if len(periods) == 2 else ():
        idle = [(periods[long] - busy) / own for busy, own in zip(work[long], work[short], strict=True) if own > 0]
        steps = min(_MOST_FILLING, int(min(idle, default=0.0) + 1e-9))
        if steps > _TRIED[2]:
            found.append((1, steps) if long == 0 else (steps, 1))
    return found


def slowdowns_given(limit: float | Mapping[str, float] | None, jobs: Sequence[str]) -> dict[str, float]:
    """By job, the permitted factor of its step time over running alone; nothing for jobs without a limit.

    Raises :class:`~weft.models.share.job.SharingError` for nonexistent jobs, and factors below 1.
    """
    given = {} if limit is None else dict(limit) if isinstance(limit, Mapping) else dict.fromkeys(jobs, limit)
    for job, factor in given.items():
        if job not in jobs:
            raise SharingError(f"max_slowdown names {job!r}, and the jobs are {', '.join(jobs)}")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < float("inf"):
            raise SharingError(f"max_slowdown of {job} is {factor!r}, it must be a number of at least 1: a job that "
                               "shares GPUs is never faster than alone")
    return given
