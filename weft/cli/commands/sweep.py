"""search many memories and batch sizes, draw the front

Solves every combination of the values given and prints time, throughput and peak memory of each, beside the best known
schedule at the same memory. All else is as in SPEC. A point that fits no GPU, or that has no costs (shipped GPT
profiles have micro-batches of 1, 2, 4 and 8), is left out and named. If a known schedule needs less memory than the
given points, points are added. The ending of the output chooses: .html, .svg, .png draw tokens per second against GiB;
.json holds the numbers.

Points are solved side by side, one process a core, or on a Dask cluster. Each solved point is kept on disk: after
Ctrl-C or SIGTERM, or with more values, the same command solves only what is missing.

example:
  weft sweep gpt.yaml --memory 16GiB,20GiB,24GiB --micro-batches 8,16 --recompute both -o front.html
  weft sweep problem.json --memory 1x,1.5x,2x --micro-batches 16 --json
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Cache, Option, Processes, Solved, counts, counts_of_any, texts
from weft.app.lib.options import PointKeywords, SearchOptions, parted
from weft.cli.lib.command import GOOD, INTERRUPTED, Call, Json, NoCache, Outputs, Quiet, command
from weft.cli.lib.output import keep_and_show, require_output, told

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from weft.app.sweep.result import Sweep
    from weft.app.sweep.run import SweepProgress
    from weft.solver.problem import Number


def _recompute(text: str) -> list[bool]:
    choices = {"on": [True], "off": [False], "both": [False, True]}
    if text not in choices:
        raise ValueError(f"is {text!r}, it must be on, off or both")
    return choices[text]


class SweepKeywords(PointKeywords, total=False):
    """What :func:`sweep` varies, and how each point is searched."""

    memory: Annotated[Sequence[Number | str] | None, Option(
        "memory of each GPU, as 24GiB or 1.5x what SPEC says (block problem: in its unit)", "M,M,...", texts)]
    micro_batches: Annotated[Sequence[int] | None, Option("micro-batches in a step", "N,N,...", counts_of_any,
                                                          "-n --micro-batches")]
    micro_batch_sizes: Annotated[Sequence[int] | None, Option("sequences in a micro-batch", "B,B,...", counts,
                                                              "--micro-batch-size")]
    recompute: Annotated[Sequence[bool] | None, Option("recompute activations or not", "on|off|both", _recompute)]
    shapes: Annotated[Sequence[str] | None, Option(
        "solve each of these shapes alone, such as chain, v, loop, groups, tensor, m", "S,S,...", texts)]
    chunks: Annotated[Sequence[int] | None, Option(
        "solve each number of stages a GPU alone: 1 (chain) or 2 (v, loop)", "C,C,...", counts)]


def sweep(
    source: Solved,
    *,
    executor: Executor | None = None,
    workers: Processes = None,
    cache: Cache = True,
    refine: Annotated[bool, Option("add no points at the memory that known schedules ahead of weft's points need",
                                   flags="--no-refine")] = True,
    options: SearchOptions | None = None,
    on_progress: Callable[[SweepProgress], None] = lambda _: None,
    **values: Unpack[SweepKeywords],
) -> Sweep:
    """Solve ``source`` for every combination of the values given, and show what memory buys in throughput.

    What varies are ``memory``, ``micro_batches``, ``micro_batch_sizes``, ``recompute``, ``shapes`` and ``chunks``, each
    a list of values. ``memory`` is what each GPU has: bytes or ``"24 GiB"`` (for a block problem: its memory unit), or
    ``"1.5x"`` for that many times what the source says. ``shapes`` (``chain``, ``v``, ``loop``, ``m`` ...) or
    ``chunks`` (stages a GPU) solve each entry by itself; without them the best of all is taken. What is not given stays
    as the source says; a block problem has memory and ``micro_batches`` only. A point that fits no GPU, or that there
    are no costs for, is left out.

    A known schedule that needs less memory than the points asked for, and is faster than those with as little, calls
    for a point at the memory it needs: ``refine`` adds them, so that no known schedule is ahead of weft's front.

    Points are solved side by side on ``executor``, any :class:`concurrent.futures.Executor`, by default a process
    pool of ``workers`` (one a core); 1 solves in this process. ``cache`` names a folder for solved points (``True``:
    the user's cache folder, ``False`` or ``None``: none), where a sweep that was interrupted goes on.

    ``options``, or ``time_limit``, ``effort`` and ``seed`` as keywords, are for each point; without a time limit a
    point has 10 seconds, or an hour where an effort ends it. With ``effort`` the rows repeat exactly, whichever
    executor solves them.

    Ctrl-C returns what is solved so far. Raises ``ValueError`` for values that mean nothing or make more than 1000
    points, and the errors of :func:`solve` where no point at all can be solved.
    """
    from weft.app.sweep.points import Axes
    from weft.app.sweep.run import options_of_points, sweep_source

    axes, limits = parted(values, Axes.__slots__)
    return sweep_source(source, Axes(**axes), options_of_points(options, limits), on_progress, executor=executor,
                        processes=workers, cache=cache, refine=refine)


@command(sweep)
def run(
    call: Call,
    *,
    output: Outputs = None,
    dask: Annotated[str | None, Option("solve on the Dask cluster with this scheduler instead", "ADDRESS")] = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    from weft.app.lib.results import OUTPUTS
    from weft.cli.lib.progress import lines, sweep_lines

    require_output(output, "a sweep", OUTPUTS, [call.source])
    with (lines(sweep_lines, quiet=quiet) as listener,
          dask_executor(dask) if dask else contextlib.nullcontext() as executor):
        found = call(executor=executor, cache=not no_cache and call.cache,
                     on_progress=told(listener, lambda progress: bool(progress.sweep.rows)))
    keep_and_show(found, "the sweep", output, as_json)
    return INTERRUPTED if found.interrupted else GOOD


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The executor of a Dask cluster whose scheduler is at ``address``.

    Raises ``ImportError`` if Dask is missing and ``OSError`` if no scheduler answers or a worker dies.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise ImportError("--dask needs Dask: install it with  pip install 'weft[dask]'") from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OSError(f"no Dask scheduler answers at {address!r} ({error or type(error).__name__})") from None
    with client:
        try:
            yield client.get_executor(pure=False)
        except KilledWorker as error:
            raise ChildProcessError(f"a Dask worker ended unexpectedly ({error})") from None
