"""Times of a model on this machine: its individual operators, the stages of a training run or of a graph network.

The input is a ``.pt2`` file or a function that returns stages; the output is times and memory for a model spec or a
block problem, each figure with its origin. :mod:`~weft.app.profile.operators`, :mod:`~weft.app.profile.stages` and
:mod:`~weft.app.profile.graph_network` are the methods, :mod:`~weft.app.profile.ranks` lets several processes measure
concurrently.
"""
