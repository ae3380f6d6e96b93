"""How does one rank run its instructions, again and again?

In: a plan, a session, a transport, and a :class:`~weft.runtime.execute.executor.Worker`, which computes. Out: when each
block ran. The executor compiles the instructions once into actions (:mod:`~weft.runtime.execute.compiling`); before
that, all ranks agree on their buffers (:mod:`~weft.runtime.execute.executor`). Workers here are blocks that only sleep
for their duration (:mod:`~weft.runtime.execute.emulate`) and any worker whose micro-batches arrive when planned
(:mod:`~weft.runtime.execute.pacing`); stages that train have their own room, :mod:`weft.runtime.train`.
"""
