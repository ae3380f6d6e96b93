"""weft: schedules for distributed DNN training and inference, searched for and proven.

The functions here are what the command line does, under the same names::

    import weft
    schedule = weft.solve("gpt.yaml", time_limit=30)      # the best schedule found, with a proven bound
    print(weft.compare("gpt.yaml"))                       # beside 1F1B, interleaved, zero-bubble ...
    weft.draw(schedule, "schedule.html")

Importing weft is cheap: what a function needs (OR-Tools, the chart library, torch) is loaded when it is called.
"""

from __future__ import annotations

from weft.api.models import SCHEMAS, capture, estimate, profile, profile_stages, schema
from weft.api.schedules import check, draw, export_schedule, fit, import_schedule, plan, replay, replay_alone, unroll
from weft.api.searches import compare, demo, explain, latency, place, place_memory, solve, sweep
from weft.app.lib.sources import PathLike, Source

__all__ = ["SCHEMAS", "PathLike", "Source", "__version__", "capture", "check", "compare", "demo", "draw", "estimate",
           "explain", "export_schedule", "fit", "import_schedule", "latency", "place", "place_memory", "plan",
           "profile", "profile_stages", "replay", "replay_alone", "schema", "solve", "sweep", "unroll"]

__version__ = "0.1.0"
