"""Which backend computes which part of a graph? Operators, the values that pass between them, and candidates (sets of
operators, each with a backend and what it takes) come in (:class:`~weft.solver.placement.cover.problem.CoverProblem`);
candidates that together cover each operator once, and can be run one after another, go out
(:class:`~weft.solver.placement.cover.problem.Cover`), with a bound that no cover is below.

:mod:`~weft.solver.placement.cover.search` is the exact cover in CP-SAT, :mod:`~weft.solver.placement.cover.problem`
finds the cycles between parts that are cut from it one after another. The former has what is known without it, too
(each backend alone, the largest parts first), and other good covers, for a clock to have the last word.
"""
