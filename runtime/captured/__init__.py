"""How does a model that was written as one module become stages that the executor runs?

In: any ``torch.nn.Module`` and an example of what it is called with. Out: one module a stage, with the ports between
them, for :class:`~weft.runtime.interface.training.Training`. :mod:`~weft.runtime.captured.captured` exports the model
to a graph of operators, :mod:`~weft.runtime.captured.purity` says which of them write in place, draw random numbers or
may be computed twice, :mod:`~weft.runtime.captured.cut` makes the stages, :mod:`~weft.runtime.captured.loss` puts the
loss behind the last one, :mod:`~weft.runtime.captured.memory.treatment` does to them what was decided of the memory of
operators (:mod:`~weft.runtime.captured.memory.executed`), :mod:`~weft.runtime.captured.inputs.batch` cuts batches, and
:mod:`~weft.runtime.captured.division` is one rank's part of it all. :mod:`weft.runtime.replay.stepping` runs it, step
by step.
"""
