"""What weft does for a Python program: one function a question, under the names of the commands.

In come sources (a model spec, a block problem, a schedule, or files of them) and options; out come the results of
:mod:`weft.app`, which print as tables and give their numbers as JSON. The functions say what arguments mean and which
errors are raised; the work is done below, and what it needs (OR-Tools, the chart library, torch) is loaded when a
function is called. :mod:`weft` exports all of them.
"""

from __future__ import annotations

from weft.api import communication, plans
from weft.api.models import SCHEMAS, capture, estimate, profile, profile_stages, schema
from weft.api.schedules import (
    check,
    draw,
    export_schedule,
    fit,
    import_schedule,
    plan,
    replay,
    replay_alone,
    replay_shared,
    unroll,
)
from weft.api.searches import compare, demo, explain, latency, place, place_memory, place_step, share, solve, sweep
from weft.api.training import pipeline, train, transports
from weft.app.lib.options import SearchOptions
from weft.app.lib.sources import PathLike, Source

__all__ = ["SCHEMAS", "PathLike", "SearchOptions", "Source", "capture", "check", "communication", "compare", "demo",
           "draw", "estimate", "explain", "export_schedule", "fit", "import_schedule", "latency", "pipeline", "place",
           "place_memory", "place_step", "plan", "plans", "profile", "profile_stages", "replay", "replay_alone",
           "replay_shared", "schema", "share", "solve", "sweep", "train", "transports",
           "unroll"]
