"""What does each layer of a model cost, and what joins the GPUs? Operators with times, listed layers or a GPT's profile
in; :class:`~weft.models.layers.costs.LayerCost` out, one a layer. A cluster in; times of transfers and collectives out.

:mod:`weft.models.layers.layering` makes layers of an operator graph, :mod:`weft.models.layers.costs` of listed ones,
:mod:`weft.models.layers.measured_gpt` of a profile. :mod:`weft.models.layers.cluster` has memory and links,
:mod:`weft.models.layers.collectives` the time of collectives.
"""
