"""In which order micro-batches of different classes run, and how many are of which: what ``--reorder`` searches.

A *sequence* gives every micro-batch of every job a class. Which are allowed is said by a
:class:`~weft.solver.choices.sequences.partial.Partial`: classes that are fixed, and how many of each are left for the other
places. Bounds hold for all sequences that a partial one leaves open (:mod:`weft.solver.choices.sequences.costs`,
:mod:`weft.solver.choices.sequences.relaxed`); the search is best-first over them (:mod:`weft.solver.choices.sequences.search`).
"""
