"""Relations that are true of every schedule of a problem, independent of how it is made.

The input is a :class:`~weft.solver.ticks.TickProblem`; the output are least distances between starts in a steady state
(:mod:`~weft.solver.relations.min_dist`), precedences (:mod:`~weft.solver.relations.implied_order`), the nodes and
machines of the bounds, with and without barriers (:mod:`~weft.solver.relations.graph`), longest paths under given
device orders (:mod:`~weft.solver.relations.fixed_order`) and under constraints with periods
(:mod:`~weft.solver.relations.difference_constraints`).
"""
