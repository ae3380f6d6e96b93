"""How CP-SAT is called: under one budget, stoppable at any moment, without losing its results.

The input is a model and a :class:`~weft.solver.cpsat.budget.Budget`, or some of the rest of one; the output is an
:class:`~weft.solver.cpsat.solve.Outcome`: a solution, a proof, a bound, or none of these. A search passes its time on
by :mod:`~weft.solver.cpsat.budget`, which needs no OR-Tools; :mod:`~weft.solver.cpsat.solve` does.
"""
