"""The search over problems with something left to decide: options, and what else makes one plain problem of many.

:func:`~weft.solver.choices.solve.solve_wide` is the way in; :mod:`weft.solver.choices.tree` the search, over nodes as
:mod:`weft.solver.choices.node` says; :mod:`weft.solver.choices.relaxed.bounds` what all assignments have in common;
:mod:`weft.solver.choices.decision` leaves as moves of the climb over decisions and orders.
"""
