"""``weft profile``: operators or stages timed on this machine."""

from __future__ import annotations

import argparse
import json

from weft import api
from weft.cli.lib.arguments import count, memory, natural, workers
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import JSON, kept, require_output, require_torch

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL.pt2", nargs="?", help="a file of torch.export.save")
    command.add_argument("--stages", metavar="FILE.py:FUNCTION", help="stages to measure instead (or MODULE:FUNCTION)")
    command.add_argument("-o", "--output", metavar="FILE", help="write the figures there")
    command.add_argument("--repeats", type=count, default=7, metavar="N", help="runs that a median is of (default: 7)")
    command.add_argument("--device", metavar="cpu|cuda", help="where (default: a GPU if there is one)")
    command.add_argument("--ranks", type=workers, default=1, metavar="N",
                         help="with --stages: processes that measure at once, as many as will run here (default: 1)")
    command.add_argument("--problem", metavar="FILE", help="with --stages: write the block problem there")
    command.add_argument("--backward", choices=("full", "split"), default="full",
                         help="with --problem: the backward whole or in its two halves (default: full)")
    command.add_argument("--memory", type=memory, metavar="SIZE",
                         help="with --problem: memory of each device, as 16GiB (default: no limit)")
    command.add_argument("--optimizer-copies", type=natural, default=2, metavar="N",
                         help="with --problem: values that the optimizer keeps for each weight (default: 2, as Adam)")
    command.add_argument("--quiet", action="store_true", help="do not show progress")
    command.add_argument("--json", action="store_true", help="print the figures as JSON")


def _run(options: argparse.Namespace) -> int:
    require_torch("profile")
    if (options.model is None) == (options.stages is None):
        raise ValueError("profile: say what to time: either MODEL.pt2, or --stages FILE.py:FUNCTION")
    for path in (options.output, options.problem):
        require_output(path, "what was measured", JSON, [options.model, _file_of(options.stages)])
    if options.stages is not None:
        return _run_stages(options)
    if options.problem is not None:
        raise ValueError("profile: --problem needs --stages; operators are not yet cut into stages")
    from weft.app.profile.operators import profile_operators
    from weft.cli.lib.progress import OperatorLine
    from weft.models.times.measured_times import save_times, times_to_json

    with OperatorLine(quiet=options.quiet) as progress:
        times = profile_operators(options.model, repeats=options.repeats, device=options.device, on_progress=progress)
    if options.output:
        kept(lambda name: save_times(times, name), options.output, "the figures")
    print(json.dumps(times_to_json(times)) if options.json else "\n".join(times.summary()))
    if options.output and not options.json:
        print(f"written to {options.output}")
    return GOOD


def _run_stages(options: argparse.Namespace) -> int:
    from weft.app.profile.stages import stage_lines
    from weft.runtime.measure.stage_costs import measured_problem, save_stage_costs, stage_costs_to_json
    from weft.solver.io.problem_files import save_problem

    measured = api.profile_stages(options.stages, repeats=options.repeats, device=options.device,
                                  ranks=options.ranks)
    if options.output:
        kept(lambda name: save_stage_costs(measured, name), options.output, "the figures")
    print(json.dumps(stage_costs_to_json(measured)) if options.json else "\n".join(stage_lines(measured)))
    if options.problem:
        save_problem(measured_problem(measured.stages, backward=options.backward, memory=options.memory,
                                      optimizer_copies=options.optimizer_copies, name=options.stages,
                                      ties=measured.ties), options.problem)
    if not options.json:
        for path in filter(None, (options.output, options.problem)):
            print(f"written to {path}")
    return GOOD


def _file_of(stages: str | None) -> str | None:
    """Of FILE.py:FUNCTION the file."""
    return None if stages is None else stages.rpartition(":")[0]


COMMAND = Command(
    name="profile",
    summary="time operators or stages on this machine",
    paragraphs=(
        "MODEL is what torch.export.save wrote: each distinct operator of it is run alone on random tensors, never "
        "the model. One that would not fit is skipped and its time filled in; the result says of each figure whether "
        "it was measured, interpolated or modelled.",
        "--stages names a function without arguments that gives a weft.runtime.Training with all "
        "stages of a chain, or of a graph (weft.profile_stages in Python): each is run alone as `weft replay` runs "
        "it, for the time and memory of its forward, its backward, and the two halves of the backward. "
        "--problem writes what to solve (these durations, this memory, one stage a device). Ranks that share a "
        "host's CPUs slow each other down: with --ranks N, N processes measure at once, as in a run.",
    ),
    example=(
        "weft profile model.pt2 -o times.json\n"
        "weft profile --stages mine.py:stages --problem problem.json --backward split --memory 16GiB\n"
        "weft solve problem.json -n 8"
    ),
    arguments=_arguments,
    run=_run,
)
