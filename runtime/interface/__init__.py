"""What does a user provide for one rank?

A :class:`~weft.runtime.interface.training.Training`: stage modules, the boundaries between them, data, loss and
optimizer. Weft provides full-precision master weights (:mod:`~weft.runtime.interface.precision`) and AdamA
(:mod:`~weft.runtime.interface.optim`). :mod:`~weft.runtime.interface.factory` finds the user's function by its name,
calls it, and checks its result.
"""
