"""How does a model that ``torch.export`` cannot follow become stages, cut before submodules that the user names?

Every stage runs the model's own forward. Submodules of other stages are not run: before the stage's own first call they
give ghosts (:mod:`~weft.runtime.by_modules.ghost`), tensors that have shape and type only, and at the first call of the
next stage the forward is left. :mod:`~weft.runtime.by_modules.trace` runs the model once and finds what must pass
between stages, :mod:`~weft.runtime.by_modules.stage` is one stage, and :mod:`~weft.runtime.by_modules.cut` all of them,
with their results and gradients held against those of the plain model. :mod:`~weft.runtime.by_modules.calls` sees the
calls of submodules and of torch's functions between them.
"""
