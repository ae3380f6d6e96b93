"""The sources of jobs that share GPUs, read as jobs: block problems unchanged, specs as data parallel training or in
the best pipeline for them alone; and the number of steps of each in a round, given, or the small ratios tried.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import gcd
from pathlib import Path

from weft.app.lib.options import SearchOptions
from weft.app.lib.sources import Source, read_source, without_entries
from weft.app.solving.opening import solve_source
from weft.models.share.data_parallel import data_parallel_job, why_not_data_parallel
from weft.models.share.job import Job, SharingError, in_one_unit, job_of
from weft.models.spec.model_sections import GraphNetworkModel
from weft.models.spec.sections import Spec
from weft.solver.problem import Problem

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


#: How a spec may run: ``auto`` means the whole model on every GPU if that fits, else a pipeline.
PARALLEL = ("auto", "data", "pipeline")


def jobs_of(sources: Sequence[Source], parallel: str, options: SearchOptions) -> tuple[Job, ...]:
    """The jobs of ``sources``, in one unit. Each pipeline gets a share of ``options``.

    Raises :class:`~weft.models.share.job.SharingError` for jobs that cannot share GPUs, and the exceptions of reading
    them.
    """
    if parallel not in PARALLEL:
        raise ValueError(f"parallel is {parallel!r}, it must be one of {', '.join(PARALLEL)}")
    if len(sources) < 2:
        raise SharingError("one job alone shares nothing: give two specs or problems, or more")
    read = [read_source(source) for source in sources]
    _require_one_cluster([source for source in read if isinstance(source, Spec)])
    names = _names(sources, read)
    return in_one_unit([_job(name, source, parallel, options, len(read))
                        for name, source in zip(names, read, strict=True)])


def _job(name: str, source: Problem | Spec, parallel: str, options: SearchOptions, count: int) -> Job:
    if not isinstance(source, Spec):
        return job_of(name, source)
    without_entries(source, "parallel")
    if isinstance(source.model, GraphNetworkModel):
        raise SharingError(f"{source.where}: a graph-network runs one pass over its graph at a time, and jobs that "
                           "share GPUs repeat their steps: leave it out")
    if parallel == "data" or (parallel == "auto" and why_not_data_parallel(source) is None):
        return data_parallel_job(source, name)
    return _pipeline(name, source, replace(options.shortened(0.4 / count), objective="rate"))


def _pipeline(name: str, spec: Spec, options: SearchOptions) -> Job:
    """``spec`` in the placement with the least time per micro-batch when it has the GPUs alone."""
    if spec.training is not None and spec.training.lengths is not None:
        raise SharingError(f"{spec.where}: training.lengths lists micro-batches that differ, and a job that shares "
                           "GPUs has steps that are alike: leave lengths out, and give micro_batches")
    count = max(spec.run.micro_batches, 4 * spec.cluster.gpus)
    found = solve_source(spec, count, replace(options, ratio=None))  # alone it is no problem with jobs
    static = found.solver.get("static_memory") or [0] * len(found.problem.devices)
    devices = tuple(replace(device, static=held) if device.lane_of is None else device
                    for device, held in zip(found.problem.devices, static, strict=True))
    placement = found.solver.get("placement")
    notes = list(found.solver.get("notes") or ())
    if spec.training is not None:
        notes.append("a step of it is one micro-batch of its pipeline; that the pipeline runs empty at the end of each "
                     "batch is not counted")
    return job_of(name, replace(found.problem, devices=devices), f"pipeline: {placement}" if placement else "pipeline",
                  tuple(notes))


def _require_one_cluster(specs: Sequence[Spec]) -> None:
    for spec in specs[1:]:
        first, own = (entry.cluster.model_dump() for entry in (specs[0], spec))
        for field in first:
            if first[field] != own[field]:
                raise SharingError(f"{spec.where}: cluster.{field} is {own[field]}, and {first[field]} in "
                                   f"{specs[0].where}: jobs share one cluster; give both the same")


def _names(sources: Sequence[Source], read: Sequence[Problem | Spec]) -> list[str]:
    """The names of the jobs: their files without the ending, else their own names; all different."""
    found: list[str] = []
    for source, content in zip(sources, read, strict=True):
        name = Path(source).stem if isinstance(source, str | os.PathLike) else content.name
        number = 1
        while (tried := name if number == 1 else f"{name} {number}") in found:
            number += 1
        found.append(tried)
    return found
