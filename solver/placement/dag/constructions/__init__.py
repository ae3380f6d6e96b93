"""How a graph of stages is found, one file per technique: each has a name, ``of`` (does it apply to this graph?) and
``improve`` (:class:`weft.solver.placement.bracket.Placer`). :mod:`weft.solver.placement.dag.place_graph` lists them in
the order in which they are called.
"""
