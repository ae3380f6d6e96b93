"""Lower bounds on the makespan and the span of N micro-batches and on the time per micro-batch of any steady state, in
ticks.

All of them are valid for every schedule that the judge accepts, periodic or not; a block's micro-batches running in
order is one of its rules. Each argument is with its code:

* :mod:`weft.solver.relations.implied_order`: precedences implied by memory;
* :mod:`weft.solver.bounds.heads`: how early and how late each operation can run, and each machine as a separate
  problem;
* :mod:`weft.solver.relations.graph`: blocks on all devices, cut out of time;
* :mod:`weft.solver.bounds.load`: each device's work alone, with times as they are written;
* :mod:`weft.solver.bounds.in_flight`: rounds of as many micro-batches as one device's memory holds;
* :mod:`weft.solver.bounds.memory`: memory x time required by one micro-batch, out of the devices' capacities;
* :mod:`weft.solver.bounds.makespan` puts them together, for a step and for steady states;
* :mod:`weft.solver.bounds.span`: how soon a step can follow another, by each machine's own clock.
"""

from weft.solver.bounds.makespan import least_time, makespan_bound, steady_bound

__all__ = ["least_time", "makespan_bound", "steady_bound"]
