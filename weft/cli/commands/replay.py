"""run a plan on real processes, one per device

Starts on every rank under torchrun: gloo on CPUs, NCCL on GPUs. With --emulate every block sleeps for its planned
duration; with --stages it runs modules of yours: a function that returns this rank's stages. A rank that dies or hangs
stops all of them within --timeout seconds and says what it waited for.

A plan with jobs (weft share) runs them beside each other, on CPUs over gloo, each in processes of its own, which are
started here, without torchrun: --stages JOB=MODULE:FUNCTION once for each. Jobs are data parallel, or stages of
pipelines that train or infer, whose micro-batches in the plan are one batch. Their losses are those they have alone; a
job that ends, fails or is killed leaves the others running. With --checkpoint FOLDER, where each job has a folder of
its name, the same call with --resume goes on from the last ones. The exit status is 1 where a job did not come to its
end. On several machines start each job with a torchrun of its own: --job JOB --turns FOLDER.

With --rank-alone one rank, or all in turn, run in this process on one device, without torchrun: real stages and real
memory; the messages of neighbours are generated. The report has each rank's times and peak memory beside the plan, and
a prediction of the whole step.

example:
  torchrun --nproc-per-node 4 -m weft replay plan.json --emulate
  weft replay shared.json --stages a=my.gpt:make --stages b=my.bert:make
  weft replay plan.json --stages my.module:training --rank-alone all
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict, Unpack

from weft.app.lib.arguments import AllowOtherModel, AllowUnsplit, Option, byte_size, count, positive
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, NO, Call, command
from weft.cli.lib.output import JSON, require_output, require_torch

Planned: TypeAlias = Annotated[PathLike, Option("a plan file (weft.plan/2)", "PLAN")]


class AllowedKeywords(TypedDict, total=False):
    """What of the stages may differ from the plan."""

    allow_unsplit: AllowUnsplit
    allow_other_model: AllowOtherModel


class TogetherKeywords(AllowedKeywords, total=False):
    """How ranks run together, of one training or of several jobs."""

    timeout: Annotated[float, Option("stop all ranks if one makes no progress for this time (default: 60)", "SECONDS",
                                     positive)]
    time_scale: Annotated[float, Option("with --emulate: make everything X times as long (default: 1)", "X", positive)]
    checkpoint: Annotated[PathLike | None, Option("save training there", "FOLDER")]
    checkpoint_every: Annotated[int, Option("after every N batches, and after the last", "N", count)]
    resume: Annotated[bool, Option("go on from the newest checkpoint, if there is one")]


class ReplayKeywords(TogetherKeywords, total=False):
    """The fields of :class:`weft.runtime.ReplayOptions`."""

    emulate: Annotated[bool, Option("sleep for each block's duration instead of computing")]
    stages: Annotated[str | None, Option(
        "where this rank's stages come from (or MODULE:FUNCTION); of a plan with jobs JOB=FILE.py:FUNCTION, once for "
        "each", "FILE.py:FUNCTION", times="append")]
    timeline_path: Annotated[PathLike | None, Option("write the measured timeline there", "FILE", flags="--timeline")]
    paced: Annotated[bool, Option("start no micro-batch before the plan does, and tell each one's latency (default: "
                                  "all are there from the start)")]
    transport: Annotated[str | None, Option(
        "what carries messages: gloo (gloo:sockets: sockets on one host too), nccl, shared (memory of one host), "
        "symmetric (memory of its GPUs), or a slow link, emulated:LATENCY,BANDWIDTH in s and bytes/s (default: nccl on "
        "GPUs, else gloo); `weft transports` tries them", "NAME")]
    reserve: Annotated[int | None, Option("what a device has beyond its planned capacity, for messages that arrive "
                                          "early (default: 1 GiB)", "SIZE", byte_size)]
    unchecked: Annotated[bool, Option(
        "with --resume: also from a checkpoint of an earlier weft, which has no checksums")]
    replicas: Annotated[int, Option("train R copies of the plan together, each on its part of every batch", "R", count,
                                    default=1)]


class SharedKeywords(TogetherKeywords, total=False):
    """The fields of :class:`weft.runtime.share.replay.SharedOptions` beside the stages."""

    stretched: Annotated[bool, Option("with stages of jobs: a block takes its planned time at least, so that GPUs and "
                                      "links that are not there are emulated by time")]
    stop_folder: Annotated[PathLike | None, Option("with stages of jobs: a file of its name there ends a job, and "
                                                   "leaves the others running", "FOLDER")]
    job: Annotated[str | None, Option("with stages of jobs: run this one alone of them, in the processes of a torchrun "
                                      "of its own", "JOB")]
    turns: Annotated[PathLike | None, Option("with --job: where the processes of all jobs on this machine take turns, "
                                             "a new folder for each run", "FOLDER")]


def replay(plan: Planned, **options: Unpack[ReplayKeywords]) -> Any:
    """Run a plan on this process's rank (under ``torchrun``); needs torch.

    ``options`` are those of :class:`weft.runtime.ReplayOptions`; errors are those of
    :func:`weft.runtime.replay.replay.replay`.
    """
    from weft.runtime.replay.options import ReplayOptions
    from weft.runtime.replay.replay import replay as run_plan

    return run_plan(plan, ReplayOptions(**options))


def replay_shared(plan: Planned, stages: Mapping[str, str], **options: Unpack[SharedKeywords]) -> Any:
    """Run the jobs of a plan with jobs, each by the function of ``stages`` that its name has and in processes of its
    own, which are started here, on CPUs over gloo; needs torch.

    Each job's losses are those that it has alone; one that ends, fails or is killed leaves the others running.
    ``options`` are those of :class:`weft.runtime.share.replay.SharedOptions`; with ``job`` this process is one of that
    job's own (under ``torchrun``; the result is on rank 0). Gives the :class:`weft.runtime.share.replay.SharedRun`.
    Errors are those of :func:`weft.runtime.share.replay.replay_job`.
    """
    from weft.runtime.share.processes import replay_in_processes
    from weft.runtime.share.replay import SharedOptions, replay_job

    asked = SharedOptions(stages, **options)
    return replay_in_processes(plan, asked) if asked.job is None else replay_job(plan, asked)


class AloneKeywords(AllowedKeywords, total=False):
    """How ranks run each by itself."""

    device: Annotated[str | None, Option("with --rank-alone: where (default: what there is)", choices=("cpu", "cuda"))]
    repeats: int


def replay_alone(plan: Planned, ranks: Sequence[int] | None = None, *, stages: str,
                 **options: Unpack[AloneKeywords]) -> Any:
    """Run ranks of a plan one after another on this process's device, each without the others; needs torch.

    Gives every rank's times and peak memory, and the step they predict. See
    :func:`weft.runtime.replay.replay.replay_single_rank`.
    """
    from weft.runtime.replay.replay import replay_single_rank as run_alone

    return run_alone(plan, ranks, stages=stages, **options)


@command(replay, replay_shared, replay_alone, stops=False)  # native code waits; weft.runtime.ranks.watch hears signals
def run(call: Call, *, rank_alone: Annotated[str | None, Option(
            "with --stages, without torchrun: run rank R (or all, one after another) by itself on this device, and "
            "predict the step", "R")] = None,
        as_json: Annotated[bool, Option("with --rank-alone: print the result as JSON", flags="--json")] = False) -> int:
    require_output(call.timeline_path, "a timeline", JSON, [call.plan])
    require_torch("replay")
    jobs = _jobs(call.stages or [])
    if jobs:
        return _run_shared(call, jobs)
    if call.stretched or call.stop_folder is not None:
        raise ValueError("--stretched and --stop-folder are for stages of jobs: give --stages JOB=MODULE:FUNCTION")
    if call.job is not None or call.turns is not None:
        raise ValueError("--job and --turns are for stages of jobs: give --stages JOB=MODULE:FUNCTION")
    stages = call.stages[0] if call.stages else None
    if rank_alone is not None:
        return _run_alone(call, stages)
    if call.device is not None or as_json:
        raise ValueError("--device and --json of replay are for --rank-alone")
    found = call(replay, stages=stages)
    if found is not None:  # rank 0 has the whole picture
        print(found)
    return GOOD


def _jobs(stages: Sequence[str]) -> dict[str, str]:
    """By job, where its stages come from; nothing where they are of one training. Raises ``ValueError`` for both."""
    if len(stages) == 1 and Path(stages[0].rpartition(":")[0]).exists():
        return {}  # one training, in a file that has the sign in its name
    parts = [_job(entry) for entry in stages]
    jobs = {job: own for job, own in parts if own}
    if jobs and len(jobs) < len(parts):
        raise ValueError("--stages: give JOB=MODULE:FUNCTION once for each job of the plan")
    if len(stages) > 1 and not jobs:
        raise ValueError("--stages is given twice: of a plan with jobs say whose stages each are, as "
                         "JOB=MODULE:FUNCTION")
    return jobs


def _job(entry: str) -> tuple[str, str]:
    """The job and its stages that ``entry`` says, nothing for one where it is of no job: the last sign parts them whose
    right side is a file, else the last one, as names of jobs and folders may have it too."""
    signs = [place for place, letter in enumerate(entry) if letter == "="]
    for place in reversed(signs):
        if Path(entry[place + 1:].rpartition(":")[0]).is_file():
            return entry[:place], entry[place + 1:]
    return (entry[:signs[-1]], entry[signs[-1] + 1:]) if signs else (entry, "")


#: What of replay's options is for one training, or none, alone.
_NOT_SHARED = ("emulate", "rank_alone", "device", "json", "timeline", "paced", "transport", "reserve", "unchecked")


def _given(call: Call, option: str) -> bool:
    name = {"timeline": "timeline_path", "json": "as_json"}.get(option, option)
    return bool(call.replicas > 1 if name == "replicas" else call.values[name])


def _run_shared(call: Call, jobs: dict[str, str]) -> int:
    for name in (*_NOT_SHARED, "replicas"):
        if _given(call, name):
            raise ValueError(f"--{name.replace('_', '-')} is not for jobs that are trained beside each other")
    found = call(replay_shared, stages=jobs)
    if found is None:
        return GOOD
    print(found)
    return NO if call.job is None and any(run.fault is not None for run in found.jobs) else GOOD


def _run_alone(call: Call, stages: str | None) -> int:
    if call.rank_alone != "all" and not call.rank_alone.isdecimal():
        raise ValueError(f"--rank-alone is {call.rank_alone!r}, it must be the number of a rank, or all")
    if stages is None or call.emulate:
        raise ValueError("--rank-alone runs real stages: give --stages MODULE:FUNCTION, without --emulate")
    for name in ("timeline", "transport", "checkpoint", "resume", "unchecked", "replicas", "paced"):
        if _given(call, name):
            raise ValueError(f"--{name} is for ranks that run together; --rank-alone runs each by itself")
    ranks = None if call.rank_alone == "all" else [int(call.rank_alone)]
    found = call(replay_alone, ranks=ranks, stages=stages)
    print(json.dumps(found.to_json()) if call.as_json else found)
    return GOOD
