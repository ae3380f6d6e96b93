"""plan GPT-1.3B on four V100s with measured costs

Compares the known schedules with weft's at a memory cap where the difference matters, prints four rows of the table,
and writes the whole table, picture (HTML, SVG, PNG), Perfetto trace, schedule and plan into a folder.

The search ends after a fixed amount of work (--effort, about two minutes on one core), not after a time: rows and
bounds are the same on a slower machine.

example:
  weft demo
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Unpack

from weft.app.lib.arguments import Option
from weft.app.lib.options import OptionsTaken, SearchKeywords, SearchOptions
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command
from weft.cli.lib.output import require_folder, search, show

if TYPE_CHECKING:
    from weft.app.demo import Demonstration
    from weft.solver.step.search import Progress

#: Seconds between lines of progress at most.
_EVERY = 2.0
#: Seconds on the clock are a safety: an effort ends it (:data:`weft.app.demo.DEMO_EFFORT`).
_SEARCH = OptionsTaken(time_limit=900.0)


def demo(folder: Annotated[PathLike, Option("where to", "FOLDER", flags="-o --output")] = "weft-demo", *,
         options: Annotated[SearchOptions | None, _SEARCH] = None,
         on_progress: Callable[[Progress], None] = lambda _: None, **keywords: Unpack[SearchKeywords]) -> Demonstration:
    """Plan GPT-1.3B on four V100s with measured costs, compare, draw, and write everything into ``folder``.

    The search ends after a fixed ``effort`` (default: about two minutes'), so that rows and bounds do not depend on the
    machine's speed; where ``time_limit`` comes first, ``cut_short`` of the result says so. The other arguments are
    those of :func:`solve`. Raises ``OSError`` if ``folder`` is unwritable.
    """
    from weft.app.demo import demonstrate

    return demonstrate(folder, _SEARCH.given(options, keywords), on_progress)


@command(demo)
def run(call: Call, *, quiet: Quiet = False, as_json: Json = False) -> int:
    require_folder(call.folder)
    shown = search(call, quiet, every=_EVERY)
    show(shown.comparison if as_json else shown.brief, as_json)
    if not as_json:
        print("written: " + "  ".join(str(path) for path in shown.files))
    if shown.cut_short:
        print(f"weft demo: {shown.cut_short}", file=sys.stderr)
    return GOOD
