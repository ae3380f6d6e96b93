"""The whole step: the best schedule of N micro-batches, and how far it is from the best possible.

In come a problem, a number of micro-batches and a :class:`~weft.solver.cpsat.budget.Budget`; out goes a
:class:`~weft.solver.schedule.Schedule` with a proven bound. :mod:`~weft.solver.step.search` runs the
:mod:`~weft.solver.step.phases` one after the other; what they share is a :class:`~weft.solver.step.state.State`: bounds
(:mod:`~weft.solver.step.proven`), the best schedule (:mod:`~weft.solver.step.incumbent`) and what is said of the search
(:mod:`~weft.solver.step.report`). :mod:`~weft.solver.step.order_model` orders operations anew,
:mod:`~weft.solver.step.edges` puts warm-up and cool-down around a period, and :mod:`~weft.solver.step.stretch` makes a
schedule of any other number of micro-batches without a search.
"""
