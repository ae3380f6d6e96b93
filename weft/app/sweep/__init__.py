"""Throughput against memory: one source solved for every combination of some values.

The input is a source, the :class:`~weft.app.sweep.points.Axes` that vary and the options of each point; the output is a
:class:`~weft.app.sweep.result.Sweep` of rows with its Pareto front. :mod:`~weft.app.sweep.points` makes the variants,
:mod:`~weft.app.sweep.run` settles them in processes or on a cluster, each by :mod:`~weft.app.sweep.cache`, which
solves or loads it; points are added if a known schedule needs less memory.
"""
