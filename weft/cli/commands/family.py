"""plan a training whose costs change: which plan when

SPEC is a model spec with phases: what changes while it trains, by steps (sequence, micro_batches, any entry by its
path) or by a curve (experts.density of a dense-to-sparse gate). Each part of the training is solved; each plan found is
priced in all other parts, and each switch by the bytes of parameters and optimizer state that move between GPUs. The
shortest path says when to switch; beside it stand a bound (the best plan in every part, no cost of switching) and the
best single plan, which is searched beside them. Solved parts are kept on disk, as those of weft sweep.

The ending of the output chooses: .html, .svg, .png draw the time of a step over the training with the switches; .json
holds the numbers.

example:
  weft family moe.yaml
  weft family moe.yaml --time-limit 5 -o family.html -o family.json
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Cache, Option, Processes
from weft.app.lib.options import PointKeywords, SearchOptions
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, NoCache, Outputs, Quiet, command
from weft.cli.lib.output import keep_and_show, require_output

if TYPE_CHECKING:
    from weft.app.family.result import Family
    from weft.app.family.run import FamilyProgress
    from weft.models.spec.spec import Spec


def family(
    source: Annotated[PathLike | Spec, Option("a model spec with phases (.yaml)", "SPEC")],
    *,
    workers: Processes = None,
    cache: Cache = True,
    options: SearchOptions | None = None,
    on_progress: Callable[[FamilyProgress], None] = lambda _: None,
    **limits: Unpack[PointKeywords],
) -> Family:
    """Plans for a training whose costs change, and the steps at which to switch from one to the next.

    ``source`` is a model spec with ``phases``. Every part of the training is solved as :func:`solve` would, and every
    plan that is found is solved for the costs of the other parts, with its layers and weights where they are. A switch
    costs the time that parameters and optimizer state take to where the next plan has them. ``str()`` of what comes
    back is the table, ``to_json()`` the numbers, ``save()`` the picture.

    ``options``, or ``time_limit``, ``effort`` and ``seed``, are for each solve, ``workers`` and ``cache`` as for
    :func:`sweep`. Raises ``ValueError`` (``SpecError`` and its like) for a spec without phases or with values that it
    cannot have, and ``Infeasible`` where nothing fits in some part.
    """
    from weft.app.family.run import family_of
    from weft.app.sweep.run import options_of_points

    return family_of(source, options_of_points(options, limits), on_progress, workers=workers, cache=cache)


@command(family)
def run(
    call: Call,
    *,
    output: Outputs = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    from weft.app.lib.results import OUTPUTS
    from weft.cli.lib.progress import family_line, lines

    require_output(output, "a family", OUTPUTS, [call.source])
    with lines(family_line, quiet=quiet) as listener:
        found = call(cache=not no_cache and call.cache, on_progress=listener)
    keep_and_show(found, "the family", output, as_json)
    return GOOD
