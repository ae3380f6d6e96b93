"""say what limits a schedule, or why there is none

SOURCE is a schedule file, or a model spec or block problem, which is solved first. The report has the critical path of
the makespan, the critical cycle of the period, and each GPU's idle time by cause: the pipeline filling, results of
other blocks, transfers, memory to be freed, the order alone, other GPUs still at work. For a problem with choices it
has the cost of each option that was not taken.

If no schedule fits: which blocks exceed which GPU's memory, how much is missing, and what would fit (exit status 1).
--what-if tries one more GiB, transfers twice as fast and each stage 10 % shorter.

example:
  weft explain schedule.json --what-if
  weft explain problem.json -n 8 --in-flight 4
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Counted, Option, count
from weft.app.lib.options import OptionsTaken, SearchKeywords, SearchOptions
from weft.app.lib.sources import Source
from weft.cli.lib.command import GOOD, NO, Call, Json, Quiet, command
from weft.cli.lib.output import search

if TYPE_CHECKING:
    from weft.app.explain import Explanation
    from weft.solver.schedule import Schedule
    from weft.solver.step.search import Progress

_SEARCH = OptionsTaken(time_limit=30.0, differing=True)


def explain(
    source: Annotated[Source | Schedule, Option("a schedule, a block problem (.json) or a model spec (.yaml)",
                                                "SOURCE")],
    *,
    micro_batches: Counted = None,
    what_if: Annotated[bool, Option("add the gain of more memory, faster transfers and shorter stages")] = False,
    in_flight: Annotated[int | None, Option("check whether N micro-batches fit in memory at once", "N", count)] = None,
    options: Annotated[SearchOptions | None, _SEARCH] = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **keywords: Unpack[SearchKeywords],
) -> Explanation:
    """Why a schedule is as long as it is, or why a problem has none.

    ``source`` is a schedule or a schedule file, or a spec or problem, which is solved first (the arguments are those of
    :func:`solve`). The explanation holds the critical path of the makespan, the critical cycle of the period, and
    every device's idle time by what it waits for; where no schedule fits, what collides in which memory and what
    would work. ``what_if`` adds what more memory, faster transfers and shorter stages would give, each tried with
    ``effort`` and all within ``time_limit``. ``in_flight`` asks how many micro-batches at once the memory holds.
    ``str()`` is the text, ``.to_json()`` the numbers.

    Raises ``InvalidSchedule`` for a schedule that breaks a rule (micro-batches may run in any order, but not with
    ``what_if``), and the errors of :func:`solve` for a source that means nothing.
    """
    from weft.app.explain import explain_source

    return explain_source(source, micro_batches, _SEARCH.given(options, keywords), on_progress,
                          what_if_figures=what_if, in_flight_wanted=in_flight)


@command(explain)
def run(call: Call, *, quiet: Quiet = False, as_json: Json = False) -> int:
    found = search(call, quiet)
    print(json.dumps(found.to_json()) if as_json else found)
    return NO if found.schedule is None else GOOD
