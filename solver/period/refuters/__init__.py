"""Which periods are impossible? One file a technique; some have a programme of their own in a file beside it.

A refuter is made of a :class:`~weft.solver.period.bracket.Bracket` and is asked periods in ticks
(:class:`~weft.solver.period.technique.Refuter`). What it refutes, and with it every shorter period, no steady state
has; of any other period it says nothing. :data:`~weft.solver.period.registry.REFUTERS` lists them: least distances
(what dependencies, devices and memory imply of the distance of any two starts), the V shape and the waits on lanes
(dynamic programmes over the devices of a pipeline), subsets of devices and the whole model (CP-SAT).
"""
