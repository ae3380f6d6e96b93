"""Problems with choices, jobs, and micro-batches that differ: what they mean, in terms of plain problems.

A :class:`~weft.solver.wide.problem.WideProblem` under an assignment of its choices has none left; in the rounds of a
:class:`~weft.solver.wide.run.Run` what is left is a plain problem (:class:`~weft.solver.wide.run.Rounds`).

More memory makes no known schedule worse: :mod:`weft.solver.baselines.rivals.stream` tries the same amounts in any
case. But a search may end with a longer schedule than with less memory, because it starts elsewhere: two of 77 streams
came out 1 % longer. A known answer for less memory can be given as ``start`` of
:func:`weft.solver.step.search.solve`: it fits, and no answer is worse than its start.
"""
