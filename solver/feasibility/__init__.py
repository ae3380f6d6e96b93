"""Why nothing fits, and the least change that does.

In comes a problem in ticks and a number of micro-batches; out goes an order of all operations that fits the devices'
memory (:mod:`~weft.solver.feasibility.memory_order`), or :class:`~weft.solver.feasibility.infeasible.Infeasible` with
the device, what it lacks and what would work (:mod:`~weft.solver.feasibility.infeasible`), and which blocks are in each
other's way (:mod:`~weft.solver.feasibility.memory_conflict`).
"""
