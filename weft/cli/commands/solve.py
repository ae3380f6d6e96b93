"""find the best schedule of a model or a block problem

For a model every placement is searched: one stage a GPU, or several in a V, a loop or a wave, with the backward whole
or split into input- and weight-gradient. Known schedules come first, so that there is an answer within a second; then
the steady state (the repetend), warm-up and cool-down around it, and in the time left the schedule as a whole. Every
answer has passed an independent check and has a lower bound. Ctrl-C, SIGTERM and SIGHUP end the search and keep the
best answer so far.

--objective says what is minimised. makespan: the time of one step. span: the longest that a GPU is busy with one step,
from its own first block to its own last, as every GPU may begin the next step when it has ended this one. rate: the
time per micro-batch of the steady state. latency: the time of one micro-batch, at the --throughput or the --period that
it needs as its floor (weft latency shows the whole trade-off).

--overlap auto also searches how collectives overlap with computation: the whole model on every GPU, gradients summed in
buckets; stages on several GPUs, their all-reduces in chunks or as reduce-scatter and all-gather, or two micro-batches
side by side. The gain over the same placement without overlap is printed.

The answer says which tools can run it, and what the nearest costs that each can. --for searches only what one of them
can run: its shapes, equally many GPUs on every stage, its own order where it has one (Megatron-LM, DeepSpeed: 1F1B with
whole backwards, interleaved where a rank has several stages), and states the step under that order.

A block problem may have choices (options that are searched too, with the cost of each), several jobs on the same GPUs
(-n a=8,b=4), and micro-batches that differ in their costs (-n short,long,long, --reorder).

example:
  weft solve gpt.yaml -o schedule.json --time-limit 30
  weft solve problem.json --micro-batches 16 --objective span
  weft solve jobs.json -n train=8,serve=16 --ratio train=1,serve=2
  weft solve gpt.yaml --overlap auto
  weft solve gpt.yaml --for megatron -o schedule.json && weft export schedule.json -o args.txt --format megatron
  weft solve gpt.yaml --objective latency --throughput 12.5/s --json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Counted, LongestPeriod, Option, Solved, Throughput
from weft.app.lib.options import MEANING, OVERLAP, OptionsTaken, SearchKeywords, SearchOptions
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command, into
from weft.cli.lib.output import JSON, require_output, save, search, summary, written

if TYPE_CHECKING:
    from weft.solver.schedule import Schedule
    from weft.solver.step.search import Progress

_SEARCH = OptionsTaken(objectives=tuple(MEANING), tools=True, differing=True)


def solve(
    source: Solved,
    *,
    micro_batches: Counted = None,
    throughput: Throughput = None,
    period: LongestPeriod = None,
    overlap: Annotated[str, Option(
        "whether a spec's collectives may run beside computation: none, or auto, searched with the schedule",
        choices=OVERLAP)] = OVERLAP[0],
    options: Annotated[SearchOptions | None, _SEARCH] = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **keywords: Unpack[SearchKeywords],
) -> Schedule:
    """The best schedule found for ``source`` within ``time_limit`` seconds, with a proven lower bound on its makespan.

    With another ``objective`` than ``"makespan"`` it is the best for that: ``"span"``, how soon the next step can begin
    (no device is longer busy with one step), ``"rate"``, the time per micro-batch of its steady state, or
    ``"latency"``, the least time of one micro-batch with a ``throughput`` of at least so many micro-batches per time
    (``"12.5/s"``) or a ``period`` of at most so long (``"80 ms"``): :func:`latency` at that floor. ``value`` and
    ``value_bound`` of the schedule are of the objective.

    For a model spec all its placements (shapes, full and split backward) are searched and the best is returned; for a
    block problem ``micro_batches`` says how many run (a spec says it itself; the argument overrides). A block problem
    may have choices, jobs and classes: then the answer is the best over all assignments, ``micro_batches`` is one
    number a job (``{"a": 8, "b": 4}``) and, where micro-batches differ, the class of each (``["short", "long"]``);
    ``reorder`` lets the search choose their order, ``ratio`` says how many of each job make a round.

    With ``overlap="auto"`` a spec's collectives may run beside computation: the whole model on every GPU with its sums
    of gradients in buckets, and stages on several GPUs with their all-reduces in chunks, as reduce-scatter and
    all-gather, or with two micro-batches side by side; which of these, and how many chunks, is searched with the order.
    ``solver["overlap"]`` says what it brings. It is never worse than without on the same placement.

    With a ``tool`` (``"megatron"``, ``"torchtitan"``, ``"pytorch"``, ``"deepspeed"``, ``"nnscaler"``) only what that
    tool can run is searched, timed in the order that it runs; what was fixed and it cannot run is refused by name.
    Without one ``solver["tools"]`` says what the nearest schedule costs in each.

    ``options`` limit the search (:class:`SearchOptions`: ``time_limit``, 60 s by default, ``effort``, ``seed``,
    ``workers``, ``objective``, ``tool``); each can also be given as a keyword, which goes before:
    ``solve("gpt.yaml", time_limit=30)``. ``effort`` limits CP-SAT's deterministic time, so that a ``seed`` repeats a
    run exactly. ``on_progress`` is called with every better schedule and bound. Ctrl-C returns the best so far.

    Raises :class:`weft.solver.step.search.Infeasible` where no schedule fits, and ``ValueError`` (``SpecError``,
    ``FormatError``) for a source that means nothing, or an objective that means nothing for it.
    """
    from weft.app.objectives import solve_for

    return solve_for(source, micro_batches, _SEARCH.given(options, keywords), on_progress, throughput=throughput,
                     period=period, overlap=overlap)


@command(solve)
def run(call: Call, *, output: Annotated[str | None, into("write the schedule there (format weft.schedule/1)")] = None,
        quiet: Quiet = False, as_json: Json = False) -> int:
    require_output(output, "a schedule", JSON, [call.source])
    schedule = search(call, quiet)
    if output is not None:
        save(schedule, output)
    if as_json:
        from weft.solver.io.schedule_files import schedule_to_json

        answer = schedule_to_json(schedule, operations=False)
        for bulky in ("problem", "operations"):
            del answer[bulky]
        print(json.dumps({"name": schedule.problem.name, **answer}))
    else:
        print(summary(schedule))
    written(output, silent=as_json)
    return GOOD
