"""The sources of jobs that share GPUs, read as jobs: block problems unchanged, specs as data parallel training or in
the best pipeline for them alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from weft.app.lib.options import SearchOptions
from weft.app.lib.sources import Source, read_source, without_entries
from weft.app.solving.opening import solve_source
from weft.models.share.data_parallel import data_parallel_job, why_not_data_parallel
from weft.models.share.job import Job, SharingError, in_one_unit, job_of
from weft.models.spec.model_sections import GraphNetworkModel
from weft.models.spec.sections import Spec
from weft.solver.problem import Problem
from weft.solver.wide.problem import WideProblem

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


def _job(name: str, source: Problem | WideProblem | Spec, parallel: str, options: SearchOptions, count: int) -> Job:
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


def _names(sources: Sequence[Source], read: Sequence[Problem | WideProblem | Spec]) -> list[str]:
    """The names of the jobs: their files without the ending, else their own names; all different."""
    found: list[str] = []
    for source, content in zip(sources, read, strict=True):
        name = Path(source).stem if isinstance(source, str | os.PathLike) else content.name
        number = 1
        while (tried := name if number == 1 else f"{name} {number}") in found:
            number += 1
        found.append(tried)
    return found

