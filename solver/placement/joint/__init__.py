"""Which graph of stages, which size of micro-batch for each of its stages, and which order has the shortest step? The
input is a placement problem at several sizes of micro-batch (:mod:`~weft.solver.placement.joint.sized`), the output a
judged schedule with bounds on the step.

:mod:`~weft.solver.placement.joint.search` is the search: cuts from the fronts of load and depth
(:mod:`~weft.solver.placement.joint.cuts`), sizes best first by a bound
(:mod:`~weft.solver.placement.joint.size_search`, :mod:`~weft.solver.placement.joint.step_bound`), orders by the search
of whole steps (:mod:`weft.solver.step`). :mod:`~weft.solver.placement.joint.sized_judge` checks the result.
"""
