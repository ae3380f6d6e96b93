"""What is a training whose costs change? A spec with phases in; parts, plans at any part's costs, bytes that move.

:mod:`~weft.models.phases.parts` says how many experts a token uses, and which spec each part of the training has, and
:mod:`~weft.models.phases.plans` what of a schedule's placement stays the same at other costs, and what moves between
GPUs where a plan takes another one's place.
"""
