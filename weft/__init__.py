"""weft: schedules for distributed DNN training and inference, searched for and proven.

The functions here are what the command line does, under the same names::

    import weft
    schedule = weft.solve("gpt.yaml", time_limit=30)      # the best schedule found, with a proven bound
    print(weft.compare("gpt.yaml"))                       # beside 1F1B, interleaved, zero-bubble ...
    weft.draw(schedule, "schedule.html")

    options = weft.SearchOptions(effort=20.0, seed=1)     # the same limits for several searches
    weft.explain("gpt.yaml", options=options)

Plans written by hand are in :mod:`weft.plans` (that is :mod:`weft.api.plans`), programs of computation and
communication in :mod:`weft.communication`.

Importing weft is cheap: what a function needs (OR-Tools, the chart library, torch) is loaded when it is called.

The front door's rooms, each using only those after it: :mod:`weft.cli` (the command line), :mod:`weft.api` (these
functions), :mod:`weft.app` (what a command does), :mod:`weft.figures` (pictures) and :mod:`weft.text` (tables, units,
sentences). :mod:`weft.runtime`, :mod:`weft.models` and :mod:`weft.solver` stand below them.
"""

from __future__ import annotations

from weft.api import (
    SCHEMAS,
    PathLike,
    SearchOptions,
    Source,
    capture,
    check,
    communication,
    compare,
    demo,
    draw,
    estimate,
    explain,
    export_schedule,
    fit,
    import_schedule,
    latency,
    pipeline,
    place,
    place_memory,
    place_step,
    plan,
    plans,
    profile,
    profile_stages,
    replay,
    replay_alone,
    replay_shared,
    schema,
    share,
    solve,
    sweep,
    train,
    transports,
    unroll,
)
from weft.text.version import VERSION as __version__

__all__ = ["SCHEMAS", "PathLike", "SearchOptions", "Source", "__version__", "capture", "check", "communication",
           "compare", "demo", "draw", "estimate", "explain", "export_schedule", "fit", "import_schedule", "latency",
           "pipeline", "place", "place_memory", "place_step", "plan", "plans", "profile", "profile_stages", "replay",
           "replay_alone", "replay_shared", "schema", "share", "solve", "sweep", "train", "transports",
           "unroll"]
