"""Which smaller or other problem has the same answer?

``barriers`` takes blocks on all devices out of time: the least period falls by at least their duration, or exactly by
it. ``multi_batch`` turns a period of several micro-batches into one of a problem with every block that many times. Both
take a :class:`~weft.solver.ticks.TickProblem` and a steady state of it, and translate steady states both ways.
"""
