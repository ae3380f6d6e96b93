"""Code shared by the commands: reading a source, search options, and reporting the choice of a placement.

A source (:mod:`~weft.app.lib.sources`) becomes a :mod:`~weft.app.lib.case` of placements, without dominated ones
(:mod:`~weft.app.lib.domination`); :mod:`~weft.app.lib.options` limit its search and notify listeners. Schedules
supplied by the user are :mod:`~weft.app.lib.judged` first. Answers are described by :mod:`~weft.app.lib.coverage`,
:mod:`~weft.app.lib.verdicts` and :mod:`~weft.app.lib.decided_memory`.
"""
