"""The best schedule of a problem: all its placements and cuts, its choices, the order of its micro-batches.

:mod:`~weft.app.solving.solve` makes them the candidates of one portfolio, :mod:`~weft.app.solving.stage_choices`
searches decisions by stage, :mod:`~weft.app.solving.reorder` the order of micro-batches that differ, and
:mod:`~weft.app.solving.opening` shows a first schedule before all placements are listed.
"""
