"""Which libraries can compute which parts of a captured graph, how fast are they here, and how are they run?

In: a :class:`~weft.runtime.captured.captured.Captured` model. :mod:`~weft.runtime.backends.registry` has the backends:
one file each in :mod:`~weft.runtime.backends.shipped`, and those registered with ``@weft.backend``.
:mod:`~weft.runtime.backends.graph` divides the graph into indivisible units and extracts parts as modules;
:mod:`~weft.runtime.backends.patterns` finds parts. :mod:`~weft.runtime.backends.measuring` measures each in a separate
process (:mod:`~weft.runtime.backends.server`, :mod:`~weft.runtime.backends.trial`), and compares its results with eager
torch. :mod:`~weft.runtime.backends.assignment` is the chosen assignment with its file ``weft.backends/1``, and
:mod:`~weft.runtime.backends.build` makes the module that runs it. :mod:`~weft.runtime.backends.stages` applies backends
to the stages of a pipeline.
"""
