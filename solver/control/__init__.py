"""The control of every long piece of work: the clock, a requested stop, workers that end with their parent.

:mod:`~weft.solver.control.clock` ends work at its checkpoints, :mod:`~weft.solver.control.stopping` says what Ctrl-C
may interrupt, :mod:`~weft.solver.control.parallel` runs tasks in processes, :mod:`~weft.solver.control.counts` records
the progress of a search and the work of each of its techniques, :mod:`~weft.solver.control.garbage` sets how often
garbage is collected, :mod:`~weft.solver.control.compiled` finds the compiled kernel, and
:mod:`~weft.solver.control.version` is weft's own. This room imports no other.
"""
