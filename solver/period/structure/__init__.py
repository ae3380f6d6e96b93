"""The structure of a problem that refuters and improvers build on.

The input is a :class:`~weft.solver.ticks.TickProblem`; the output is the structure, or None if the problem lacks it:
``device_order`` (the devices as a micro-batch runs through them), ``lanes`` (every block continues in one block of the
next device) and ``v_shape`` (four lanes that are one chain along the devices and back, twice). Nothing here is a proof
or a schedule.
"""
