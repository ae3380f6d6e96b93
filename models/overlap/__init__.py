"""Overlap of communication. A spec in; placements as problems whose collectives have options out.

:mod:`weft.models.overlap.data_parallel` is the whole model on every GPU, with its sums of gradients on network lanes.
:mod:`weft.models.overlap.together` is a placement on groups of GPUs that compute layers together, with options for the
collectives of each stage: in chunks beside computation (timed by :mod:`weft.models.overlap.flow`), and on slices of the
sequence in between. :mod:`weft.models.overlap.frameworks` models today's frameworks at the same costs.
"""
