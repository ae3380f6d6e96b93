"""Graph neural networks that are streamed: from a spec or a graph to a plan, a running network, a table of stages.

:mod:`~weft.app.graph_network.sizes` measures what layers need, :mod:`~weft.app.graph_network.planning` lists what may
be decided as placements of one case, :mod:`~weft.app.graph_network.run` runs a plan, and
:mod:`~weft.app.graph_network.stages` characterises a network's stages on a graph.
"""
