"""The implementation of the commands: a source in, a result out.

The inputs are sources (a model spec, a block problem, a schedule, or files of them) and
:class:`~weft.app.lib.options.SearchOptions`; the outputs are results that print as tables, give their numbers as JSON
and save themselves, including pictures. There is one file for each question (``solve``, ``compare``, ``explain`` ...),
or a room if a question needs several files: :mod:`~weft.app.sweep`, :mod:`~weft.app.latency`, :mod:`~weft.app.place`,
:mod:`~weft.app.profile`; shared code is in :mod:`~weft.app.lib`. The room prints nothing and handles no signals: that
is :mod:`weft.cli`. It makes no scheduling decisions either: that is :mod:`weft.solver`.
"""
