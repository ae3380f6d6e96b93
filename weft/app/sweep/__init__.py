"""What memory buys in throughput: one source solved for every combination of some values.

In come a source, the :class:`~weft.app.sweep.points.Axes` that vary and the options of each point; out comes a
:class:`~weft.app.sweep.result.Sweep` of rows with its Pareto front. :mod:`~weft.app.sweep.points` makes the variants,
:mod:`~weft.app.sweep.run` settles them in processes or on a cluster (:mod:`~weft.app.sweep.dask`), each by
:mod:`~weft.app.sweep.cache`, which solves it or has it; points are added where a known schedule needs less memory.
"""
