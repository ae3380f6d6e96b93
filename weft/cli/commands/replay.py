"""``weft replay``: a plan run on real processes, or one rank alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from weft import api
from weft.cli.lib.arguments import add_allowed, byte_size, count, positive
from weft.cli.lib.command import GOOD, NO, Command
from weft.cli.lib.output import JSON, require_output, require_torch

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("plan", metavar="PLAN", help="a plan file (weft.plan/2)")
    command.add_argument("--emulate", action="store_true", help="sleep for each block's duration instead of computing")
    command.add_argument("--stages", metavar="FILE.py:FUNCTION", action="append",
                         help="where this rank's stages come from (or MODULE:FUNCTION); of a plan with jobs "
                              "JOB=FILE.py:FUNCTION, once for each")
    command.add_argument("--stretched", action="store_true", help="with stages of jobs: a block takes its planned time "
                         "at least, so that GPUs and links that are not there are emulated by time")
    command.add_argument("--stop-folder", metavar="FOLDER", help="with stages of jobs: a file of its name there ends a "
                         "job, and leaves the others running")
    command.add_argument("--processes", choices=("one", "job"), default="one",
                         help="with stages of jobs: one set of processes for all (under torchrun; the default), or one "
                              "for each job, started here: a job that is killed leaves the others running")
    command.add_argument("--job", metavar="JOB", help="with stages of jobs: run this one alone of them, in the "
                         "processes of a torchrun of its own")
    command.add_argument("--turns", metavar="FOLDER", help="with --job: where the processes of all jobs on this "
                         "machine take turns, a new folder for each run")
    add_allowed(command)
    command.add_argument("--timeout", type=positive, default=60.0, metavar="SECONDS",
                         help="stop all ranks if one makes no progress for this time (default: 60)")
    command.add_argument("--rank-alone", metavar="R", help="with --stages, without torchrun: run rank R (or all, one "
                         "after another) by itself on this device, and predict the step")
    command.add_argument("--device", choices=("cpu", "cuda"), help="with --rank-alone: where (default: what there is)")
    command.add_argument("--json", action="store_true", help="with --rank-alone: print the result as JSON")
    command.add_argument("--timeline", metavar="FILE", help="write the measured timeline there")
    command.add_argument("--time-scale", type=positive, default=1.0, metavar="X",
                         help="with --emulate: make everything X times as long (default: 1)")
    command.add_argument("--paced", action="store_true", help="start no micro-batch before the plan does, and tell "
                         "each one's latency (default: all are there from the start)")
    command.add_argument("--transport", metavar="NAME",
                         help="what carries messages: gloo (gloo:sockets: sockets on one host too), nccl, shared "
                              "(memory of one host), symmetric (memory of its GPUs), or a slow link, "
                              "emulated:LATENCY,BANDWIDTH in s and bytes/s (default: nccl on GPUs, else gloo); "
                              "`weft transports` tries them")
    command.add_argument("--reserve", type=byte_size, metavar="SIZE",
                         help="what a device has beyond its planned capacity, for messages that arrive early "
                              "(default: 1 GiB)")
    command.add_argument("--checkpoint", metavar="FOLDER", help="save training there")
    command.add_argument("--checkpoint-every", type=count, default=0, metavar="N",
                         help="after every N batches, and after the last")
    command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    command.add_argument("--unchecked", action="store_true",
                         help="with --resume: also from a checkpoint of an earlier weft, which has no checksums")
    command.add_argument("--replicas", type=count, default=1, metavar="R",
                         help="train R copies of the plan together, each on its part of every batch (default: 1)")


def _run(options: argparse.Namespace) -> int:
    require_output(options.timeline, "a timeline", JSON, [options.plan])
    require_torch("replay")
    jobs = _jobs(options.stages or [])
    if jobs:
        return _run_shared(options, jobs)
    if options.stretched or options.stop_folder is not None:
        raise ValueError("--stretched and --stop-folder are for stages of jobs: give --stages JOB=MODULE:FUNCTION")
    if options.processes != "one" or options.job is not None or options.turns is not None:
        raise ValueError("--processes, --job and --turns are for stages of jobs: give --stages JOB=MODULE:FUNCTION")
    options.stages = options.stages[0] if options.stages else None
    if options.rank_alone is not None:
        return _run_alone(options)
    if options.device is not None or options.json:
        raise ValueError("--device and --json of replay are for --rank-alone")
    found = api.replay(options.plan, emulate=options.emulate, stages=options.stages, timeout=options.timeout,
                       timeline_path=options.timeline, time_scale=options.time_scale, transport=options.transport,
                       reserve=options.reserve, checkpoint=options.checkpoint,
                       checkpoint_every=options.checkpoint_every, resume=options.resume, unchecked=options.unchecked,
                       replicas=options.replicas, paced=options.paced, allow_unsplit=options.allow_unsplit,
                       allow_other_model=options.allow_other_model)
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


def _run_shared(options: argparse.Namespace, jobs: dict[str, str]) -> int:
    for name in _NOT_SHARED:
        if getattr(options, name):
            raise ValueError(f"--{name.replace('_', '-')} is not for jobs that are trained beside each other")
    if options.replicas > 1:
        raise ValueError("--replicas is not for jobs that are trained beside each other")
    if options.processes == "one" and options.job is None and (
            options.checkpoint is not None or options.checkpoint_every or options.resume):
        raise ValueError("--checkpoint, --checkpoint-every and --resume are not for jobs that are trained in one set "
                         "of processes; use --processes job")
    found = api.replay_shared(options.plan, jobs, processes=options.processes, timeout=options.timeout,
                              stretched=options.stretched, time_scale=options.time_scale,
                              stop_folder=options.stop_folder, job=options.job, turns=options.turns,
                              checkpoint=options.checkpoint, checkpoint_every=options.checkpoint_every,
                              resume=options.resume, allow_unsplit=options.allow_unsplit,
                              allow_other_model=options.allow_other_model)
    if found is not None:
        print(found)
    if options.processes == "job" and any(run.fault is not None for run in found.jobs):
        return NO
    return GOOD


def _run_alone(options: argparse.Namespace) -> int:
    if options.rank_alone != "all" and not options.rank_alone.isdecimal():
        raise ValueError(f"--rank-alone is {options.rank_alone!r}, it must be the number of a rank, or all")
    if options.stages is None or options.emulate:
        raise ValueError("--rank-alone runs real stages: give --stages MODULE:FUNCTION, without --emulate")
    together = {"--timeline": options.timeline, "--transport": options.transport, "--checkpoint": options.checkpoint,
                "--resume": options.resume, "--unchecked": options.unchecked, "--replicas": options.replicas > 1,
                "--paced": options.paced}
    for option, given in together.items():
        if given:
            raise ValueError(f"{option} is for ranks that run together; --rank-alone runs each by itself")
    ranks = None if options.rank_alone == "all" else [int(options.rank_alone)]
    found = api.replay_alone(options.plan, ranks, stages=options.stages, device=options.device,
                             allow_unsplit=options.allow_unsplit, allow_other_model=options.allow_other_model)
    print(json.dumps(found.to_json()) if options.json else found)
    return GOOD


COMMAND = Command(
    name="replay",
    summary="run a plan on real processes, one per device",
    paragraphs=(
        "Starts on every rank under torchrun: gloo on CPUs, NCCL on GPUs. With --emulate every block sleeps "
        "for its planned duration; with --stages it runs modules of yours: a function that returns this "
        "rank's stages. A rank that dies or hangs stops all of them within --timeout seconds and says what it "
        "waited for.",
        "A plan with jobs (weft share) runs them beside each other, on CPUs over gloo, a group of ranks for each job: "
        "--stages JOB=MODULE:FUNCTION once for each. Jobs are data parallel, or stages of pipelines that train or "
        "infer, whose micro-batches in the plan are one batch. Their losses are those they have alone; a job that ends "
        "or fails leaves the others running.",
        "With --processes job each job has processes of its own, which are started here, without torchrun: one that is "
        "killed ends that job alone, and with --checkpoint FOLDER, where each job has a folder of its name, the same "
        "call with --resume goes on from the last ones. The exit status is 1 where a job did not come to its end. On "
        "several machines start each job with a torchrun of its own: --job JOB --turns FOLDER.",
        "With --rank-alone one rank, or all in turn, run in this process on one device, without torchrun: real "
        "stages and real memory; the messages of neighbours are generated. The report has each rank's times and peak "
        "memory beside the plan, and a prediction of the whole step.",
    ),
    example=(
        "torchrun --nproc-per-node 4 -m weft replay plan.json --emulate\n"
        "torchrun --nproc-per-node 2 -m weft replay shared.json --stages a=my.gpt:make --stages b=my.bert:make\n"
        "weft replay shared.json --stages a=my.gpt:make --stages b=my.bert:make --processes job\n"
        "weft replay plan.json --stages my.module:training --rank-alone all"
    ),
    arguments=_arguments,
    run=_run,
    # Joining and torch's transports wait in native code; while the plan runs, weft.runtime.ranks.watch hears signals.
    stops=False,
)
