"""What a schedule lacks: which work is critical, why devices idle, and what more memory or faster blocks would bring.

In comes a valid :class:`~weft.solver.schedule.Schedule`; out go its critical path
(:mod:`~weft.solver.diagnose.critical_path`), the cycle that sets its period
(:mod:`~weft.solver.diagnose.critical_cycle`), each bubble with its cause (:mod:`~weft.solver.diagnose.bubbles`), and
the makespans of changed problems (:mod:`~weft.solver.diagnose.sensitivity`).
"""
