"""What the commands share: how a source is read, how a search may run, and how a choice of placement is told.

A source (:mod:`~weft.app.lib.sources`) becomes a :mod:`~weft.app.lib.case` of placements, less those that another one
makes superfluous (:mod:`~weft.app.lib.domination`); :mod:`~weft.app.lib.options` limit its search and tell whoever
watches. Schedules that somebody hands in are :mod:`~weft.app.lib.judged` first. What is told of an answer is in
:mod:`~weft.app.lib.coverage`, :mod:`~weft.app.lib.verdicts` and :mod:`~weft.app.lib.decided_memory`.
"""
