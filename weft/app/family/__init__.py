"""Which plan when, in a training whose costs change? A spec with phases in; switch points with a bound out.

:mod:`~weft.app.family.run` has each part of the training solved, and each plan found there at the costs of the other
parts, side by side and from the cache of sweeps, and takes the shortest path; :mod:`~weft.app.family.result` says what
came out.
"""
