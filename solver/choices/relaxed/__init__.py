"""Facts independent of open decisions: one problem without choices for all assignments, its bounds, and the least of
each device's work (:mod:`~weft.solver.choices.relaxed.bounds` says why every schedule maps into it)."""
