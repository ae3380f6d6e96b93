"""In which order micro-batches of different classes run, and how many are of which: what ``--reorder`` searches.

A *sequence* gives every micro-batch of every job a class. Which are allowed is said by a
:class:`~weft.solver.choices.sequences.partial.Sequences`: classes that are fixed, and how many of each are left for the
other places. Bounds hold for all sequences that one leaves open (:mod:`weft.solver.choices.sequences.costs`,
:mod:`weft.solver.choices.sequences.memory`, :mod:`weft.solver.choices.sequences.node`). They are nodes of the tree
of :mod:`weft.solver.choices.tree`; what comes before it is in :mod:`weft.solver.choices.sequences.solve`.
"""
