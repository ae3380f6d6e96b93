"""How do a rank's stage modules train as one process would train the whole model?

In: a plan and one rank's :class:`~weft.runtime.interface.training.Training`. Out: the executor's worker
(:mod:`~weft.runtime.train.worker`) and its gradients, summed over replicas and tied parameters, clipped, and passed to
the optimizer (:mod:`~weft.runtime.train.reduction`). :mod:`~weft.runtime.train.stage` runs the passes of one stage,
:mod:`~weft.runtime.train.offload` moves the saved tensors of a forward to the host and back,
:mod:`~weft.runtime.train.accumulation` folds gradients into AdamA. Before the first step
:mod:`~weft.runtime.train.agreement` compares the modules with the plan. For users' stages on several ranks there are
the layers of :mod:`~weft.runtime.train.parallel`, and for inference :mod:`~weft.runtime.train.requests`.
"""
