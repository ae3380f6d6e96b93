"""put weft's schedule beside the published ones

GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-V, a greedy one, and weft's: time per step, bubble, peak memory per GPU, and
whether it fits. All use the same durations and the same accounting of memory; each known schedule gets the placement on
which it fits and is fastest.

Bubble is said three ways: steady (idle share of one period), step (of the whole makespan), span (between each device's
first start and last end).

With --objective span steps may overlap: known schedules are timed for how soon the next step can begin, each under its
own order, and weft searches for that.

example:
  weft compare gpt.yaml --time-limit 30
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Counted, Solved
from weft.app.lib.options import Search, SearchKeywords, SearchOptions
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command
from weft.cli.lib.output import search, show

if TYPE_CHECKING:
    from weft.app.compare import Comparison
    from weft.solver.step.search import Progress

__all__ = ["compare", "run"]

_SEARCH = Search(objectives=("makespan", "span"), differing=True)


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
    from weft.app.compare import compare_source

    return compare_source(source, micro_batches, _SEARCH.given(options, keywords), on_progress)


@command(compare)
def run(call: Call, *, quiet: Quiet = False, as_json: Json = False) -> int:
    show(search(call, quiet), as_json)
    return GOOD
