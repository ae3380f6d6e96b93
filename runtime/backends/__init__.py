"""Which libraries can compute which parts of a captured graph, what does that take here, and how is it run?

In: a :class:`~weft.runtime.captured.captured.Captured` model. :mod:`~weft.runtime.backends.registry` has the backends,
one file each in :mod:`~weft.runtime.backends.shipped` and those that a user registers with ``@weft.backend``.
:mod:`~weft.runtime.backends.graph` says what of the graph cannot be parted, and makes parts modules of their own;
:mod:`~weft.runtime.backends.patterns` finds parts. :mod:`~weft.runtime.backends.measuring` has each measured in a
process of its own (:mod:`~weft.runtime.backends.server`, :mod:`~weft.runtime.backends.trial`), and its numbers held
against eager torch. :mod:`~weft.runtime.backends.assignment` is what was chosen, its file ``weft.backends/1``, and
:mod:`~weft.runtime.backends.build` the module that runs it. :mod:`~weft.runtime.backends.stages` has the stages of a
pipeline computed by backends.
"""
