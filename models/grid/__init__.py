"""Which uniform grid of GPUs (tensor, context, expert, data and pipeline degrees) trains a model fastest?

In: a spec with ``parallel``. Out: the grids that its numbers leave open (:mod:`weft.models.grid.grids`), each checked
(:mod:`weft.models.grid.degrees`), with what one GPU of it has of every layer (:mod:`weft.models.grid.rank`), what the
end of the step adds (:mod:`weft.models.grid.step_end`), a bound, and the pipeline as a spec of its own
(:mod:`weft.models.grid.pipeline`), which is searched like any other.
"""
