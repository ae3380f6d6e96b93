"""How does a model that ``torch.export`` cannot follow become stages, cut before submodules that the user names?

Every stage runs the model's own forward. Submodules of other stages are not run: before the stage's own first call they
return ghosts (:mod:`~weft.runtime.by_modules.calls`), tensors with shape and type only, and at the first call of the
next stage the forward is aborted. :mod:`~weft.runtime.by_modules.trace` runs the model once and finds the values that
must pass between stages, :mod:`~weft.runtime.by_modules.stage` is one stage, and :mod:`~weft.runtime.by_modules.cut`
all of them, with their results and gradients compared with the plain model's. :mod:`~weft.runtime.by_modules.calls`
intercepts the calls of submodules and of torch's functions between them.
"""
