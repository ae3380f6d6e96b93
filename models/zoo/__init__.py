"""The operators of a published model. The sizes of its family in, its operator graph out.

:func:`~weft.models.zoo.graphs.model_graph` gives the graph of one micro-batch of any family: one file a family, one
line in :data:`~weft.models.zoo.graphs.GRAPHS`. The sizes are sections of a spec (:mod:`weft.models.spec.families`),
those of published models are in :mod:`weft.models.zoo.published`, code shared by families in
:mod:`weft.models.zoo.lib`.
"""
