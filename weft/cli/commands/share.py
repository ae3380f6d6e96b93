"""put several jobs on the same GPUs

Each JOB is a model spec or a block problem of which a micro-batch is one step; all are on the same GPUs. They share
computation, network and memory in one period, every rank sees their collectives in one order, and each job's own steps
stay as they are. A spec trains data parallel where the whole model fits on each GPU, else as a pipeline.

The table has the period with its bound, the speed-up over running the jobs in turn (each with its own overlap, and
without any), and the slowdown of each job's step compared with running alone. Jobs that do not fit together, or of
which one would get slower than --max-slowdown allows, are refused with exit status 1.

The schedule that -o writes is one of jobs: draw, check, plan and replay take it.

example:
  weft share gpt.yaml bert.yaml -o shared.json -o shared.html
  weft share a.json b.json --ratio 2:1 --max-slowdown 1.2
  weft share a.json b.json c.json --max-slowdown a=1.1,b=2 --json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Option, micro_batches, positive
from weft.app.lib.options import LimitKeywords, OptionsTaken, SearchOptions
from weft.app.lib.sources import Source
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command, into
from weft.cli.lib.output import keep_and_show, require_output, search

if TYPE_CHECKING:
    from weft.app.share.result import Sharing
    from weft.solver.step.search import Progress

_SEARCH = OptionsTaken()


def _slowdown(text: str) -> float | dict[str, float]:
    """``1.2``, or ``a=1.2,b=2`` by job."""
    if "=" not in text:
        return positive(text)
    found: dict[str, float] = {}
    for part in text.split(","):
        job, _, value = part.rpartition("=")
        if not job.strip() or job.strip() in found:
            raise ValueError(f"is {text!r}, it must be a number, or job=number between commas, each job once")
        found[job.strip()] = positive(value.strip())
    return found


def share(
    *sources: Annotated[Source, Option("a model spec (.yaml) or a block problem (.json) each, two at least", "JOB")],
    ratio: Annotated[str | Sequence[int] | Mapping[str, int] | None, Option(
        "steps of each job in a round, in the order of the jobs (default: small ratios are tried)", "P:Q")] = None,
    max_slowdown: Annotated[float | Mapping[str, float] | None, Option(
        "a step of no job may take more than X times as long as alone; or a=X,b=Y", "X", _slowdown)] = None,
    rounds: Annotated[int | None, Option(
        "rounds of the schedule (default: 8, or more where the steady state needs them)", "N", micro_batches)] = None,
    parallel: Annotated[str, Option(
        "how specs train: data (the whole model on each GPU), pipeline (the best one for it alone), or auto (data "
        "where it fits; the default)", choices=("auto", "data", "pipeline"))] = "auto",
    options: Annotated[SearchOptions | None, _SEARCH] = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **keywords: Unpack[LimitKeywords],
) -> Sharing:
    """Two or more jobs on the same GPUs in one period: one computes while another communicates.

    Each of ``sources`` is a job: a block problem, whose micro-batch is one step of it (an edge of distance 1 from its
    last collective to its first block has steps follow each other), or a model spec. A spec that trains runs data
    parallel, with the whole model on every GPU and gradients summed in parts behind the backward, or as the pipeline
    that is fastest alone: ``parallel`` is ``"data"``, ``"pipeline"``, or ``"auto"``, data parallel where that fits.
    Jobs are on the same GPUs, share their memory, and are called by their files.

    ``ratio`` says how many steps of each job a round has: ``"2:1"``, numbers in the order of the jobs, or a number by
    name; without one small ratios are tried, and the one with the largest speed-up is taken. ``max_slowdown``: how many
    times as long as alone, with its own overlap, a step may take at most, of all jobs or by name. ``rounds``: of the
    schedule, by default 8, or more where the steady state takes more to appear. ``options`` limit the search as in
    :func:`solve`.

    The result has the period with its bound, the speed-up over running in turn with and without overlap inside each
    job, each job's slowdown, and the ``schedule``; ``str()`` is the table, ``save(path)`` writes schedule or picture.
    Raises :class:`weft.solver.step.search.Infeasible` where jobs do not fit together or some gets too slow, and
    ``ValueError`` (``SharingError``, ``SpecError``, ``FormatError``) for jobs that cannot share GPUs.
    """
    from weft.app.share.search import Question, share_sources

    return share_sources(sources, Question(ratio, max_slowdown, rounds, parallel), _SEARCH.given(options, keywords),
                         on_progress)


@command(share)
def run(call: Call, *, output: Annotated[list[str] | None, into(
        "write the schedule (.json) or its picture (.html, .svg, .png) there; may be given several times", "append")
        ] = None, quiet: Quiet = False, as_json: Json = False) -> int:
    from weft.app.lib.results import OUTPUTS

    require_output(output, "a schedule", OUTPUTS, call.sources)
    keep_and_show(search(call, quiet), "the schedule", output, as_json)
    return GOOD
