"""What a command does: a source in, a result out.

In come sources (a model spec, a block problem, a schedule, or files of them) and
:class:`~weft.app.lib.options.SearchOptions`; out come results that print as tables, give their numbers as JSON and save
themselves, pictures included. One file a question stands here (``solve``, ``compare``, ``explain`` ...), a room where a
question has several files: :mod:`~weft.app.sweep`, :mod:`~weft.app.latency`, :mod:`~weft.app.place`,
:mod:`~weft.app.profile`; what they share is in :mod:`~weft.app.lib`. The room prints nothing and hears no signals: that
is :mod:`weft.cli`. It decides no schedule either: that is :mod:`weft.solver`.
"""
