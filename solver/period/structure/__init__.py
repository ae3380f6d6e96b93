"""What does a problem look like? Structure that refuters and improvers build on.

A :class:`~weft.solver.ticks.TickProblem` comes in; out goes the structure, or None where the problem has it not:
``device_order`` (the devices as a micro-batch runs through them), ``lanes`` (every block goes on in one block of the
next device) and ``v_shape`` (four lanes that are one chain along the devices and back, twice). Nothing here is a proof
or a schedule.
"""
