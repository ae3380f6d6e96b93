"""Which periods are impossible? One file a technique; some have a programme of their own in a file beside it.

A refuter is made of a :class:`~weft.solver.period.bracket.Bracket` and is asked periods in ticks
(:class:`~weft.solver.period.technique.Refuter`). What it refutes, and with it every shorter period, no steady state
has; of any other period it says nothing. :data:`~weft.solver.period.registry.REFUTERS` lists them: least distances
(what dependencies, devices and memory imply of the distance of any two starts) and the V shape (a dynamic programme
over the devices of a pipeline). The model of all blocks refutes periods too, where it finds none
(:mod:`weft.solver.period.improvers.whole_model_solve`).
"""
