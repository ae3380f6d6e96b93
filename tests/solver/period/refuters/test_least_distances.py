"""Least distances refute periods to the tick, and remember the least that they leave open."""

from __future__ import annotations

from tests.support.builders import chain, pipeline
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.refuters.least_distances import LeastDistances
from weft.solver.period.search import find_period
from weft.solver.ticks import TickProblem


def test_a_chain_with_one_activation_waits_for_the_whole_round_trip() -> None:
    """12 for each micro-batch, of which a device works 3: the load is open at first, and tried."""
    instance = TickProblem.of(pipeline(chain(4), memory=1))
    refuter = LeastDistances(instance)
    time = Slice(Budget(), 60.0, 60.0)
    assert (refuter.near, refuter.known) == (3, 2)
    assert refuter.refutes([13, 12], time) == [] and refuter.near == 3
    assert refuter.refutes([3, 5, 11, 12], time) == [3, 5, 11] and refuter.near == 12
    assert refuter.refutes([4], time) == [4] and refuter.near == 12  # what is known stays
    assert find_period(instance, one_at_a_time(instance), Budget(deterministic=5.0)).best.period == 12
