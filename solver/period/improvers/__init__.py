"""Which shorter steady state is there? One file a technique.

An improver is made of a :class:`~weft.solver.period.bracket.Bracket` and offers it steady states that are shorter than
its best (:class:`~weft.solver.period.technique.Improver`); whatever it offers keeps every dependency and every device's
memory when it is repeated for ever. :data:`~weft.solver.period.registry.IMPROVERS` lists them: a list schedule,
local search of rings, and whole models.
"""
