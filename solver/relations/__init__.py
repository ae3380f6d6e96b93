"""What holds in every schedule of a problem, whoever makes it.

In comes a :class:`~weft.solver.ticks.TickProblem`; out go least distances between starts in a steady state
(:mod:`~weft.solver.relations.min_dist`), what must precede what (:mod:`~weft.solver.relations.implied_order`), the
nodes and machines that bounds look at, with and without barriers (:mod:`~weft.solver.relations.graph`), longest paths
under given device orders (:mod:`~weft.solver.relations.fixed_order`) and under constraints with periods
(:mod:`~weft.solver.relations.difference_constraints`).
"""
