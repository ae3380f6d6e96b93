"""Training runs whose costs change. A spec with phases in; parts, plans at any part's costs, bytes moved.

:mod:`~weft.models.phases.parts` gives the number of experts a token uses, and the spec of each part of the training,
and :mod:`~weft.models.phases.plans` the part of a placement that is independent of costs, and the bytes moved between
GPUs when plans switch.
"""
