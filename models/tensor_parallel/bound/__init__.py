"""Lower bounds over all placements of layers on groups of GPUs, for any cuts and groups.

:mod:`~weft.models.tensor_parallel.bound.any_placement` tests step times: groups must cover all layers within the time,
and activations must fit.
"""
