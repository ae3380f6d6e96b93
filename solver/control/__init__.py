"""What every long piece of work listens to: the clock, a stop that is asked for, workers that end with their parent.

Nothing comes in; :mod:`~weft.solver.control.clock` ends work at its checkpoints, :mod:`~weft.solver.control.stopping`
says what Ctrl-C may break off, :mod:`~weft.solver.control.parallel` runs tasks in processes,
:mod:`~weft.solver.control.counts` keeps how a search went and what each of its techniques did,
:mod:`~weft.solver.control.garbage` says how often garbage is collected, and :mod:`~weft.solver.control.compiled` finds
the compiled kernel. This room imports no other.
"""
