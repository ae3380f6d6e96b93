"""How long a model takes on this machine: its operators one by one, the stages of a training or of a graph network.

In comes a ``.pt2`` file or a function that gives stages; out come times and memory, each figure with its origin, that a
model spec or a block problem takes. :mod:`~weft.app.profile.operators`, :mod:`~weft.app.profile.stages` and
:mod:`~weft.app.profile.graph_network` are the ways, :mod:`~weft.app.profile.ranks` lets several processes measure at
once.
"""
