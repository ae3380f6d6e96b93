"""All techniques of the period search: :data:`REFUTERS` and :data:`IMPROVERS`. They are loaded if its start leaves a
period open."""

from __future__ import annotations

from weft.solver.period.improvers.list_schedule import ListSchedule
from weft.solver.period.improvers.ring_search import RingSearch
from weft.solver.period.improvers.whole_model_solve import WholeModelSolve
from weft.solver.period.reductions.barriers import Contraction
from weft.solver.period.refuters.least_distances import LeastDistances
from weft.solver.period.refuters.v_shape import VShape
from weft.solver.period.technique import Improver, Refuter

REFUTERS: tuple[type[Refuter], ...] = (LeastDistances, VShape)

IMPROVERS: tuple[type[Improver], ...] = (ListSchedule, RingSearch, WholeModelSolve)

#: The names allowed in ``without`` of :func:`~weft.solver.period.search.find_period`: every technique, and the removal
#: of barriers.
OPTIONAL = (*(refuter.name for refuter in REFUTERS), *(improver.name for improver in IMPROVERS), Contraction.name)
