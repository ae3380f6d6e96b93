"""put weft's schedule beside the published ones

GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-V, a greedy one, and weft's: time per step, bubble, peak memory per GPU, and
whether it fits. All use the same durations and the same accounting of memory; each known schedule gets the placement on
which it fits and is fastest. Of a spec that leaves its grid open (parallel: auto) all are on the best grid found.

Bubble is said three ways: steady (idle share of one period), step (of the whole makespan), span (between each device's
first start and last end).

--layout, --megatron and --plan judge somebody's plan instead: a layout of Megatron-LM (Et*2|t*3|tL), its arguments
(degrees, sizes, recomputation, as text or a file), or another tool's file. The plan under its tool's own order stands
beside its cut under weft's order, the best cut under Megatron's order, and weft's best, on the same degrees and costs;
below stands what limits the plan. Of an open grid a layout has the degrees that serve it best, and the best grid is
there too.

With --objective span steps may overlap: known schedules are timed for how soon the next step can begin, each under its
own order, and weft searches for that.

example:
  weft compare gpt.yaml --time-limit 30
  weft compare gpt.yaml --layout "Et*5|(t*6|)*2,t*7L"
  weft compare llama.yaml --megatron arguments.txt
  weft compare llama.yaml --plan torchtitan.toml
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Counted, Option, Solved
from weft.app.lib.options import OptionsTaken, SearchKeywords, SearchOptions
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command
from weft.cli.lib.output import search, show

if TYPE_CHECKING:
    from weft.app.compare.result import Comparison
    from weft.app.tools.compare_plan import PlanComparison
    from weft.solver.step.search import Progress

_SEARCH = OptionsTaken(objectives=("makespan", "span"), differing=True)


def compare(source: Solved, *, micro_batches: Counted = None,
            options: Annotated[SearchOptions | None, _SEARCH] = None,
            on_progress: Callable[[Progress], None] = lambda _: None,
            **keywords: Unpack[SearchKeywords]) -> Comparison:
    """Every known schedule that ``source`` allows beside weft's own, at equal memory and on the same durations.

    Each known schedule gets, of the placements it can run on, the one where it fits and is fastest. Arguments and
    errors are those of :func:`solve`; the ``objective`` is the makespan or the span, which known schedules are then
    timed for, each under its own order. ``str()`` of the result is the table, ``.rows`` its numbers, ``.schedules`` the
    schedules by name.
    """
    from weft.app.compare.run import compare_source

    return compare_source(source, micro_batches, _SEARCH.given(options, keywords), on_progress)


def compare_plan(source: Solved, *,
                 layout: Annotated[str | None, Option("judge this layout of Megatron-LM", "LAYOUT")] = None,
                 megatron: Annotated[str | None, Option(
                     "judge the plan of these arguments of Megatron-LM, or of those in this file", "ARGS")] = None,
                 plan: Annotated[PathLike | None, Option(
                     "judge the plan in this file: torchtitan's settings (.toml), DeepSpeed's partition (.py), or "
                     "arguments of Megatron-LM", "FILE")] = None,
                 options: Annotated[SearchOptions | None, _SEARCH] = None,
                 on_progress: Callable[[Progress], None] = lambda _: None,
                 **keywords: Unpack[SearchKeywords]) -> PlanComparison:
    """Somebody's plan for the model of the spec ``source``, beside the best on the same degrees and costs.

    The plan is a ``layout`` of Megatron-LM, its arguments (``megatron``: degrees, sizes, recomputation), or both; or a
    file of a tool (``plan``). It is timed under that tool's order; beside it stand its cut under the best order found,
    the best cut under Megatron's order, and the best of all. ``str()`` of the result is the table, ``.why()`` says what
    limits the plan. ``options`` are those of :func:`solve`, for the makespan. Raises ``ValueError`` for a plan that
    does not fit the model or the GPUs.
    """
    from weft.app.tools.compare_plan import plan_compared

    return plan_compared(source, _SEARCH.given(options, keywords), on_progress, layout=layout, megatron=megatron,
                         plan=plan)


@command(compare, compare_plan)
def run(call: Call, *, quiet: Quiet = False, as_json: Json = False) -> int:
    judges = any(value is not None for value in (call.layout, call.megatron, call.plan))
    if judges and call.micro_batches is not None:
        raise ValueError("--micro-batches is for known schedules: a plan runs the batch of the spec, or the "
                         "--global-batch-size of --megatron")
    show(search(call, quiet, compare_plan if judges else compare), as_json)
    return GOOD
