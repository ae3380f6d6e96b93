"""``weft sweep``: throughput against memory over many variants."""

from __future__ import annotations

import argparse
import contextlib

from weft import api
from weft.cli.lib.arguments import add_repeatable, counts, counts_of_any, positive, texts, workers
from weft.cli.lib.command import GOOD, INTERRUPTED, SPEC, Command
from weft.cli.lib.output import keep_and_show, require_output, told

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="a model spec (.yaml) or a block problem (.json)")
    command.add_argument("--memory", type=texts, metavar="M,M,...",
                         help="memory of each GPU, as 24GiB or 1.5x what SPEC says (block problem: in its unit)")
    command.add_argument("-n", "--micro-batches", type=counts_of_any, metavar="N,N,...", help="micro-batches in a step")
    command.add_argument("--micro-batch-size", type=counts, metavar="B,B,...", help="sequences in a micro-batch")
    command.add_argument("--recompute", type=_recompute, metavar="on|off|both", help="recompute activations or not")
    command.add_argument("--shapes", type=texts, metavar="S,S,...",
                         help="solve each of these shapes alone, such as chain, v, loop, groups, tensor, m")
    command.add_argument("--chunks", type=counts, metavar="C,C,...",
                         help="solve each number of stages a GPU alone: 1 (chain) or 2 (v, loop)")
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="where to (.html, .svg, .png, .json); may be given several times")
    command.add_argument("--time-limit", type=positive, metavar="SECONDS",
                         help="time limit of each point (default: 10, none with --effort)")
    add_repeatable(command)
    command.add_argument("--workers", type=workers, metavar="N", help="processes (default: one a core)")
    command.add_argument("--dask", metavar="ADDRESS", help="solve on the Dask cluster with this scheduler instead")
    command.add_argument("--no-refine", dest="refine", action="store_false",
                         help="add no points at the memory that known schedules ahead of weft's points need")
    cache = command.add_mutually_exclusive_group()
    cache.add_argument("--cache", metavar="DIR", default=True, help="keep solved points there (default: ~/.cache/weft)")
    cache.add_argument("--no-cache", dest="cache", action="store_false", help="neither use nor keep solved points")
    command.add_argument("--quiet", action="store_true", help="do not show progress")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(options: argparse.Namespace) -> int:
    from weft.app.sweep.dask import dask_executor
    from weft.app.sweep.result import OUTPUTS
    from weft.cli.lib.progress import SweepLines, Waiting

    for output in options.output or ():
        require_output(output, "a sweep", OUTPUTS, [options.spec])
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(Waiting(quiet=options.quiet))
        executor = stack.enter_context(dask_executor(options.dask)) if options.dask else None
        found = api.sweep(
            options.spec, memory=options.memory, micro_batches=options.micro_batches,
            micro_batch_sizes=options.micro_batch_size, recompute=options.recompute, shapes=options.shapes,
            chunks=options.chunks, executor=executor, workers=options.workers, cache=options.cache,
            refine=options.refine, time_limit=options.time_limit, effort=options.effort, seed=options.seed,
            on_progress=told(waiting.before(SweepLines(quiet=options.quiet)),
                             lambda progress: bool(progress.sweep.rows)))
    keep_and_show(found, "the sweep", options)
    return INTERRUPTED if found.interrupted else GOOD


def _recompute(text: str) -> list[bool]:
    choices = {"on": [True], "off": [False], "both": [False, True]}
    if text not in choices:
        raise argparse.ArgumentTypeError(f"is {text!r}, it must be on, off or both")
    return choices[text]


COMMAND = Command(
    name="sweep",
    summary="search many memories and batch sizes, draw the front",
    paragraphs=(
        SPEC,
        "Solves every combination of the values given and prints time, throughput and peak memory of each, beside "
        "the best known schedule at the same memory. All else is as in SPEC. A point that fits no "
        "GPU, or that has no costs (shipped GPT profiles have micro-batches of 1, 2, 4 and 8), is left out and "
        "named. If a known schedule needs less memory than the given points, points are added. "
        "The ending of the output chooses: .html, .svg, .png draw tokens per second against GiB; "
        ".json holds the numbers.",
        "Points are solved side by side, one process a core, or on a Dask cluster. Each solved point is kept on "
        "disk: after Ctrl-C or SIGTERM, or with more values, the same command solves only what is missing.",
    ),
    example=(
        "weft sweep gpt.yaml --memory 16GiB,20GiB,24GiB --micro-batches 8,16 --recompute both -o front.html\n"
        "weft sweep problem.json --memory 1x,1.5x,2x --micro-batches 16 --json"
    ),
    arguments=_arguments,
    run=_run,
)
