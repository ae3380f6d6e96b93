"""Which periods are impossible? One file a technique; some have a programme of their own in a file beside it.

A refuter is made of a :class:`~weft.solver.period.bracket.Bracket` and is asked periods in ticks
(:class:`~weft.solver.period.technique.Refuter`). What it refutes, and with it every shorter period, no steady state
has; of any other period it says nothing. :data:`REFUTERS` is the registry: least distances (what dependencies, devices
and memory imply of the distance of any two starts), the V shape and the waits on lanes (dynamic programmes over the
devices of a pipeline), subsets of devices and the whole model (CP-SAT).
"""

from __future__ import annotations

from weft.solver.period.refuters.device_subsets import DeviceSubsets
from weft.solver.period.refuters.lane_waits import LaneWaits
from weft.solver.period.refuters.least_distances import LeastDistances
from weft.solver.period.refuters.v_shape import VShape
from weft.solver.period.refuters.whole_model import WholeModel
from weft.solver.period.technique import Refuter

__all__ = ["REFUTERS"]

REFUTERS: tuple[type[Refuter], ...] = (LeastDistances, VShape, LaneWaits, DeviceSubsets, WholeModel)
