"""Which schedule is the shortest on the same model, devices, memory and durations? A source in; a table out.

:mod:`~weft.app.compare.run` has every known schedule made, on the cut that serves it best, and weft's own found;
:mod:`~weft.app.compare.result` says what came out.
"""
