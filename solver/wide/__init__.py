"""Problems with choices, jobs, and micro-batches that differ: what they mean, in terms of plain problems.

A :class:`~weft.solver.wide.problem.WideProblem` under an assignment of its choices has none left; in the rounds of a
:class:`~weft.solver.wide.run.Run` what is left is a plain problem (:class:`~weft.solver.wide.run.Rounds`).

More memory makes no known schedule worse (:mod:`weft.solver.baselines.rivals.stream` tries the same amounts whatever
there is), but a search may end at a longer one than with less: it starts elsewhere, and nobody has solved the smaller
problem for it. Of 77 streams two came out 1 % longer so. Who has the answer with less memory gives it as ``start`` of
:func:`weft.solver.step.search.solve`; it fits, and no answer is worse than its start.
"""
