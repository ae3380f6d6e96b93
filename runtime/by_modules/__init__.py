"""How does a model that ``torch.export`` cannot follow become stages, cut before submodules that the user names?

Every stage runs the model's own forward, but not the submodules of other stages: submodules of earlier stages return
remote tensors (:mod:`~weft.runtime.by_modules.calls`), which have a shape and a dtype only, and the forward is aborted
at the first call of the next stage. :mod:`~weft.runtime.by_modules.trace` runs the model once and finds the values that
must pass between stages. :mod:`~weft.runtime.by_modules.stage` is one stage, :mod:`~weft.runtime.by_modules.cut` has
all of them and compares their results and gradients with the plain model's. :mod:`~weft.runtime.by_modules.calls`
intercepts the calls of submodules and of torch's functions.
"""
