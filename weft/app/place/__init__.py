"""Where operators run: a graph cut into stages on devices, or a chain whose memory is decided.

In come a graph, or a model spec, and a :class:`~weft.app.place.place.PlaceQuestion`; out comes a placement with a
proven bound (:mod:`~weft.app.place.place`), or memory plans (:mod:`~weft.app.place.memory_plans`), in the formats of
:mod:`~weft.app.place.schemas`. Cutting itself is :mod:`weft.solver.placement`.
"""
