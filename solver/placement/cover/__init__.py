"""Which backend computes which part of a graph? The input are operators, the values that pass between them, and
candidates: sets of operators, each with a backend and a time
(:class:`~weft.solver.placement.cover.problem.CoverProblem`); the output are candidates that together cover each
operator once, and can be run one after another (:class:`~weft.solver.placement.cover.problem.Cover`), with a lower
bound on all covers.

:mod:`~weft.solver.placement.cover.search` is the exact cover in CP-SAT, :mod:`~weft.solver.placement.cover.problem`
finds the cycles between parts that are cut from it one after another. The former also has the starts without a model
(each backend alone, the largest parts first), and other good covers, between which measurements decide.
"""
