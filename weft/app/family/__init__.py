"""Which plan runs when, in a training run whose costs change? A spec with phases in; switch points with a bound out.

:mod:`~weft.app.family.run` solves each part of the training, and each plan found there at the costs of the other parts,
in parallel and with the cache of sweeps, and takes the shortest path; :mod:`~weft.app.family.result` is the result.
"""
