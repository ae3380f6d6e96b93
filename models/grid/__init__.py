"""Which uniform grid of GPUs (tensor, context, expert, data and pipeline degrees) trains a model fastest?

In: a spec with ``parallel``. Out: the grids compatible with its numbers (:mod:`weft.models.grid.grids`), each checked
(:mod:`weft.models.grid.degrees`), with one GPU's share of every layer (:mod:`weft.models.grid.rank`), the time of the
end of the step (:mod:`weft.models.grid.step_end`), a bound, and the pipeline as a separate spec
(:mod:`weft.models.grid.pipeline`), which is searched like any other.
"""
