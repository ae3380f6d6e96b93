"""Placement of operators: a graph cut into stages on devices, or a chain with memory decisions.

The input is a graph, or a model spec, and a :class:`~weft.app.place.place.PlaceQuestion`; the output is a placement
with a proven bound (:mod:`~weft.app.place.place`), or memory plans (:mod:`~weft.app.place.memory_plans`), in the
formats of :mod:`~weft.app.place.schemas`. Cutting itself is :mod:`weft.solver.placement`.
"""
