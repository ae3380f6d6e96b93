"""How does one rank run its instructions, again and again?

In: a plan, a session, a transport, and a :class:`~weft.runtime.execute.executor.Worker`, which computes. Out: the times
of each block. All ranks agree on their buffers (:mod:`~weft.runtime.execute.executor`), then each compiles its
instructions into actions (:mod:`~weft.runtime.execute.compiling`), once. The workers of this room sleep for the
duration of blocks (:mod:`~weft.runtime.execute.emulate`), or delay micro-batches until their planned arrival
(:mod:`~weft.runtime.execute.pacing`); :mod:`weft.runtime.train` has the worker that trains.
"""
