"""How do collectives run beside computation on a rank? Programs of both in; tensors, and trained weights, out.

:mod:`weft.runtime.communication.channel` runs collectives in the order in which they are started, on a thread (CPU) or
a stream (CUDA); :mod:`weft.runtime.communication.instructions` is a rank's program of computation and communication;
:mod:`weft.runtime.communication.executor` runs it, with the kernels of :mod:`weft.runtime.communication.calls`.
:mod:`weft.runtime.communication.sharded_optimizer` trains a module data parallel, each rank with its slice of the
optimizer's states. :mod:`weft.app.communication` makes instructions of a program.
"""
