"""The weaknesses of a schedule: its critical work, why devices idle, and the gain from more memory or faster blocks.

The input is a valid :class:`~weft.solver.schedule.Schedule`; the output is its critical path
(:mod:`~weft.solver.diagnose.critical_path`), the cycle that sets its period
(:mod:`~weft.solver.diagnose.critical_cycle`), each bubble with its cause (:mod:`~weft.solver.diagnose.bubbles`), and
the makespans of changed problems (:mod:`~weft.solver.diagnose.sensitivity`).
"""
