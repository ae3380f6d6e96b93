"""Graph neural networks that are streamed: from a spec or a graph to a plan and a running network.

:mod:`~weft.app.graph_network.planning` measures the layers' memory and lists the possible decisions as placements of
one case, :mod:`~weft.app.graph_network.run` runs a plan.
"""
