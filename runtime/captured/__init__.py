"""How does a model written as one module become stages that the executor runs?

In: a ``torch.nn.Module`` that ``torch.export`` can follow, and example arguments. Out: one module a stage, with the
ports between them, for
:class:`~weft.runtime.interface.training.Training`. :mod:`~weft.runtime.captured.captured` exports the model to a graph
of operators, :mod:`~weft.runtime.captured.purity` finds which of them write in place, draw random numbers or may be
computed twice, :mod:`~weft.runtime.captured.cut` makes the stages, :mod:`~weft.runtime.captured.loss` appends the loss
to the last one, :mod:`~weft.runtime.captured.memory.treatment` applies the memory decisions of operators to them
(:mod:`~weft.runtime.captured.memory.stage_forward`), :mod:`~weft.runtime.captured.inputs.batch` cuts batches, and
:mod:`~weft.runtime.captured.division` builds the training of one rank. :mod:`weft.runtime.replay.stepping` runs its
steps.
"""
