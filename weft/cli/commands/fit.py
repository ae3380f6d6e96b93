"""correct planned costs by measured timelines

PLAN is the plan or schedule that ran; each TIMELINE is a file that `weft replay --timeline` wrote. The table has every
block's planned duration, the median of the measured ones with their spread, and the transfers that could be measured.
-o writes the problem with the measured costs, for the next `weft solve`.

example:
  weft fit plan.json run1.json run2.json -o measured.json && weft solve measured.json -n 8 -o better.json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from weft.app.lib.arguments import Option
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, command, into
from weft.cli.lib.output import JSON, kept, require_output, show, written

if TYPE_CHECKING:
    from weft.app.fit import Fitted
    from weft.solver.schedule import Schedule


def fit(source: Annotated[Schedule | PathLike, Option("the plan or schedule that ran (weft.plan/1, weft.schedule/1)",
                                                      "PLAN")],
        *timelines: Annotated[PathLike, Option("a measured run of it (weft.timeline/1)", "TIMELINE")]) -> Fitted:
    """What :func:`replay` measured, as corrected costs: ``source`` is the plan or schedule that ran, each of
    ``timelines`` a run of it.

    The result's ``problem`` has every block's median duration, and the transfers that could be seen, so that the next
    :func:`solve` is on real figures; ``save(path)`` writes it, ``str()`` is the table of planned against measured,
    ``warnings`` names blocks with a large spread. Raises ``ValueError`` for a timeline of another plan.
    """
    from weft.app.fit import fit_timelines

    return fit_timelines(source, timelines)


@command(fit)
def run(call: Call, *, output: Annotated[str | None, into("write the problem with measured costs there")] = None,
        as_json: Json = False) -> int:
    require_output(output, "a problem", JSON, [call.source, *call.timelines])
    found = call()
    if output:
        kept(found.save, output, "the problem")
    show(found, as_json)
    if not as_json:
        for warning in found.warnings:
            print(f"warning: {warning}")
    written(output, silent=as_json)
    return GOOD
