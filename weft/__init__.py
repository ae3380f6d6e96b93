"""weft: schedules for distributed DNN training and inference, searched for and proven.

The functions here are what the command line does, under the same names::

    import weft
    schedule = weft.solve("gpt.yaml", time_limit=30)      # the best schedule found, with a proven bound
    print(weft.compare("gpt.yaml"))                       # beside 1F1B, interleaved, zero-bubble ...
    weft.draw(schedule, "schedule.html")

    options = weft.SearchOptions(effort=20.0, seed=1)     # the same limits for several searches
    weft.explain("gpt.yaml", options=options)

Plans written by hand are in :mod:`weft.plans`, programs of computation and communication in
:mod:`weft.communication`.

Importing weft is cheap: what a function needs (OR-Tools, the chart library, torch) is loaded when it is called.

The front door's rooms, each using only those after it: :mod:`weft.cli` (the commands: these functions, and what a
shell shows of them), :mod:`weft.app` (what a command does), :mod:`weft.figures` (pictures) and :mod:`weft.text`
(tables, units, sentences). :mod:`weft.runtime`, :mod:`weft.models` and :mod:`weft.solver` stand below them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import communication, plans
from weft.solver.control.version import VERSION as __version__
from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from weft.app.export import export_schedule, import_schedule
    from weft.app.lib.options import SearchOptions
    from weft.app.lib.sources import PathLike, Source
    from weft.app.pipeline.of_module import pipeline
    from weft.app.unroll import unroll
    from weft.cli.commands.calibrate import calibrate
    from weft.cli.commands.capture import capture
    from weft.cli.commands.check import check
    from weft.cli.commands.compare import compare, compare_plan
    from weft.cli.commands.demo import demo
    from weft.cli.commands.draw import draw
    from weft.cli.commands.estimate import estimate
    from weft.cli.commands.explain import explain
    from weft.cli.commands.family import family
    from weft.cli.commands.fit import fit
    from weft.cli.commands.latency import latency
    from weft.cli.commands.place import place, place_backends, place_memory, place_step
    from weft.cli.commands.plan import plan
    from weft.cli.commands.profile import profile, profile_graph_network, profile_stages
    from weft.cli.commands.replay import replay, replay_alone, replay_shared
    from weft.cli.commands.schema import SCHEMAS, schema
    from weft.cli.commands.share import share
    from weft.cli.commands.solve import solve
    from weft.cli.commands.sweep import sweep
    from weft.cli.commands.train import train
    from weft.cli.commands.transports import transports
    from weft.runtime.backends.build import build
    from weft.runtime.backends.registry import backend

__all__ = ["SCHEMAS", "PathLike", "SearchOptions", "Source", "__version__", "backend", "build", "calibrate", "capture",
           "check", "communication", "compare", "compare_plan", "demo", "draw", "estimate", "explain",
           "export_schedule", "family", "fit", "import_schedule", "latency", "pipeline", "place", "place_backends",
           "place_memory", "place_step", "plan",
           "plans", "profile", "profile_graph_network", "profile_stages", "replay", "replay_alone", "replay_shared",
           "schema", "share", "solve", "sweep", "train", "transports", "unroll"]

__getattr__, __dir__ = lazily(__name__)
