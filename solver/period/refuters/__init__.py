"""Which periods are impossible? One file per technique; some have a separate programme in a file beside it.

A refuter is created for a :class:`~weft.solver.period.bracket.Bracket` and receives periods in ticks
(:class:`~weft.solver.period.technique.Refuter`). No steady state has a period that it refutes, or a shorter one; about
other periods it says nothing. :data:`~weft.solver.period.registry.REFUTERS` lists them: least distances (the least
distance of any two starts by dependencies, devices and memory) and the V shape (a dynamic programme over the devices of
a pipeline). The model of all blocks also refutes periods, if it finds no schedule
(:mod:`weft.solver.period.improvers.whole_model_solve`).
"""
