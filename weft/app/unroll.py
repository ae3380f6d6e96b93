"""A schedule for another number of micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.app.lib.judged import judged

if TYPE_CHECKING:
    from weft.app.lib.sources import PathLike
    from weft.solver.schedule import Schedule


def unroll(schedule: Schedule | PathLike, micro_batches: int) -> Schedule:
    """A solved schedule for another number of micro-batches: inserts or removes whole periods, without a search.

    Raises ``ValueError`` without a repetend, or for too few micro-batches.
    """
    from weft.solver.step.stretch import unroll as stretch

    return stretch(judged(schedule), micro_batches)
