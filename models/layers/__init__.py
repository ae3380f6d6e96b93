"""The costs of a model's layers, and the links between GPUs. Operators with times, listed layers or a GPT's profile
in; :class:`~weft.models.layers.costs.LayerCost` out, one a layer. A cluster in; times of transfers and collectives out.

:mod:`weft.models.layers.layering` makes layers from an operator graph, :mod:`weft.models.layers.costs` from a list,
:mod:`weft.models.layers.measured_gpt` from a profile. :mod:`weft.models.layers.cluster` has memory and links,
:mod:`weft.models.layers.collectives` the time of collectives.
"""
