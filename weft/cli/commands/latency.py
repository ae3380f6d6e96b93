"""find the least time of a micro-batch at a throughput

Latency is the time from a micro-batch's first start to its last end while another one starts every period. With
--throughput (micro-batches per time) or --period (the longest allowed) the least latency at that floor is searched;
without, the whole trade-off from the best throughput to the least latency. Every point carries a lower bound that holds
over all placements and every schedule of one micro-batch a period. A floor that cannot be met is refused with the best
throughput (exit status 1). Ctrl-C, SIGTERM and SIGHUP keep what was found.

-o writes, at a floor, the schedule (.json) or its picture (.html, .svg, .png); of the trade-off its numbers or its
picture. Its latency holds for micro-batches that arrive when the schedule has them begin, as with weft replay --paced;
those that are all there from the start queue.

example:
  weft latency inference.yaml -o front.html
  weft latency inference.yaml --throughput 12.5/s -o schedule.json
  weft latency problem.json --period 80 --json
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Counted, LongestPeriod, Option, Solved, Throughput, count
from weft.app.lib.options import OptionsTaken, SearchKeywords, SearchOptions
from weft.cli.lib.command import GOOD, Call, Json, Outputs, Quiet, command
from weft.cli.lib.output import keep_and_show, require_output, told

if TYPE_CHECKING:
    from weft.app.latency.serving import Serving

_SEARCH = OptionsTaken(differing=True, offered=False)


def latency(
    source: Solved,
    *,
    throughput: Throughput = None,
    period: LongestPeriod = None,
    points: Annotated[int, Option("points of the trade-off, its two ends among them", "N", count)] = 8,
    micro_batches: Counted = None,
    options: Annotated[SearchOptions | None, _SEARCH] = None,
    on_progress: Callable[[Serving], None] = lambda _: None,
    **keywords: Unpack[SearchKeywords],
) -> Serving:
    """How long one micro-batch takes, first start to last end, when another one starts every period.

    At a floor, ``throughput`` (micro-batches per time unit, or ``"12.5/s"``) or a longest ``period`` (in the time unit,
    or ``"80 ms"``), the least latency; without one the front of latency against throughput, from the best throughput
    to the least latency, about ``points`` of it. Each point has a proven lower bound over all placements, and a judged
    schedule of ``micro_batches`` (default: what a spec says). The other arguments are those of :func:`solve`; Ctrl-C
    returns what was found. One micro-batch a period is searched.

    Raises :class:`weft.solver.step.search.Infeasible` where no schedule fits or the floor cannot be met (it says what
    can), and
    ``ValueError`` (``SpecError``, ``FormatError``) for a source or a floor that means nothing.
    """
    from weft.app.latency.search import serve_source

    return serve_source(source, micro_batches, _SEARCH.given(options, keywords), on_progress,
                        throughput=throughput, period=period, points=points)


@command(latency)
def run(call: Call, *, output: Outputs = None, quiet: Quiet = False, as_json: Json = False) -> int:
    from weft.app.lib.results import OUTPUTS
    from weft.cli.lib.progress import lines, point_lines

    require_output(output, "a latency", OUTPUTS, [call.source])
    with lines(point_lines(), quiet=quiet) as listener:
        found = call(on_progress=told(listener))
    keep_and_show(found, "the result", output, as_json)
    return GOOD
