"""What many tests need: problems, commands, ranks, how much is tried. Each name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from tests.support.builders import TINY_SPEC, any_order, both_ways, chain, judged, loop, pipeline, uneven, v, valid
    from tests.support.captured_models import GPT, made, token_loss
    from tests.support.commands import ran, refusal, shows
    from tests.support.examples import for_all, slow
    from tests.support.lane_problems import laned_pipeline, laned_schedule
    from tests.support.loading import loaded_after
    from tests.support.paths import DATA, REPROS, ROOT, SHARED, SPECS, written
    from tests.support.ranks import PATIENCE, finished, found_by_parts, launch_forked
    from tests.support.strategies import cases, in_order, pipelines, schedules
    from tests.support.tessel_shapes import shape
    from tests.support.wide_problems import drawn_run, drawn_wide, keep_or_recompute, schedule_of_jobs, wide_runs

__all__ = ["DATA", "GPT", "PATIENCE", "REPROS", "ROOT", "SHARED", "SPECS", "TINY_SPEC", "any_order", "both_ways",
           "cases", "chain", "drawn_run", "drawn_wide", "finished", "for_all", "found_by_parts", "in_order", "judged",
           "keep_or_recompute", "laned_pipeline", "laned_schedule", "launch_forked", "loaded_after", "loop", "made",
           "pipeline", "pipelines", "ran", "refusal", "schedule_of_jobs", "schedules", "shape", "shows", "slow",
           "token_loss", "uneven", "v", "valid", "wide_runs", "written"]

__getattr__, __dir__ = lazily(__name__)
