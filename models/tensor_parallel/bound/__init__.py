"""What no placement of layers on groups of GPUs can go below, whatever its cuts and groups.

:mod:`~weft.models.tensor_parallel.bound.any_placement` tries one step time after the other: groups must cover all
layers within it, and there must be room for what is kept.
"""
