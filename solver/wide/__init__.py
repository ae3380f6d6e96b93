"""Problems with choices, jobs, and micro-batches that differ: what they mean, in terms of plain problems.

A :class:`~weft.solver.wide.problem.WideProblem` under an assignment of its choices has none left; in the rounds of a
:class:`~weft.solver.wide.run.Run` what is left is a plain problem (:class:`~weft.solver.wide.run.Rounds`).
"""
