"""Is there a shorter steady state? One file per technique.

An improver is created for a :class:`~weft.solver.period.bracket.Bracket` and offers it steady states that are shorter
than its best (:class:`~weft.solver.period.technique.Improver`); each of them keeps every dependency and every device's
memory when it is repeated forever. :data:`~weft.solver.period.registry.IMPROVERS` lists them: a list schedule, local
search of rings, and whole models.
"""
