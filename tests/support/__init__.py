"""What many tests need: problems, commands, ranks, how much is tried. Each name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from tests.support.builders import TINY_SPEC, any_order, both_ways, chain, judged, loop, pipeline, uneven, v, valid
    from tests.support.commands import ran, refusal, shows
    from tests.support.examples import for_all, slow
    from tests.support.lane_problems import laned_pipeline, laned_schedule
    from tests.support.loading import loaded_after
    from tests.support.paths import DATA, REPROS, ROOT, SHARED, SPECS, written
    from tests.support.ranks import PATIENCE, finished, found_by_parts, launch_forked
    from tests.support.tessel_shapes import shape

__all__ = ["DATA", "PATIENCE", "REPROS", "ROOT", "SHARED", "SPECS", "TINY_SPEC", "any_order", "both_ways", "chain",
           "finished", "for_all", "found_by_parts", "judged", "laned_pipeline", "laned_schedule", "launch_forked",
           "loaded_after", "loop", "pipeline", "ran", "refusal", "shape", "shows", "slow", "uneven", "v", "valid",
           "written"]

__getattr__, __dir__ = lazily(__name__)
