"""How long a model takes on this machine: its operators one by one, or the stages of a training.

In comes a ``.pt2`` file or a function that gives stages; out come times and memory, each figure with its origin, that a
model spec or a block problem takes. :mod:`~weft.app.profile.operators` and :mod:`~weft.app.profile.stages` are the two
ways, :mod:`~weft.app.profile.ranks` lets several processes measure at once.
"""
