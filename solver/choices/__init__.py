"""The search over problems with open decisions: options, and others that make one plain problem of many.

:func:`~weft.solver.choices.solve.solve_run` is the entry point; :mod:`weft.solver.choices.tree` the search, over nodes
of :mod:`weft.solver.choices.node`; :mod:`weft.solver.choices.relaxed.bounds` the common part of all assignments;
:mod:`weft.solver.choices.decision` leaves as moves of the climb over decisions and orders.
"""
