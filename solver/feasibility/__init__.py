"""Why nothing fits, and the least change that does.

The input is a problem in ticks and a number of micro-batches; the output is an order of all operations that fits the
devices' memory (:mod:`~weft.solver.feasibility.memory_order`), or
:class:`~weft.solver.feasibility.infeasible.Infeasible` with the device, its shortage and a change that works
(:mod:`~weft.solver.feasibility.infeasible`), and the blocks that collide
(:mod:`~weft.solver.feasibility.memory_conflict`).
"""
