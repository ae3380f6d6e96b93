"""Which shorter steady state is there? One file a technique.

An improver is made of a :class:`~weft.solver.period.bracket.Bracket` and offers it steady states that are shorter than
its best (:class:`~weft.solver.period.technique.Improver`); whatever it offers keeps every dependency and every device's
memory when it is repeated for ever. :data:`IMPROVERS` is the registry: what a published schedule repeats, a list
schedule, whole models, beams along the devices, and neighbourhoods of the best.
"""

from __future__ import annotations

from weft.solver.period.improvers.beam import Beam
from weft.solver.period.improvers.list_schedule import ListSchedule
from weft.solver.period.improvers.neighbourhoods import Neighbourhoods
from weft.solver.period.improvers.published_start import PublishedStart
from weft.solver.period.improvers.whole_model_solve import WholeModelSolve
from weft.solver.period.technique import Improver

__all__ = ["IMPROVERS"]

IMPROVERS: tuple[type[Improver], ...] = (PublishedStart, ListSchedule, WholeModelSolve, Beam, Neighbourhoods)
