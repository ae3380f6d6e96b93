"""How do collectives run beside computation on a rank? Programs of both in; tensors, and weights that are trained, out.

:mod:`weft.runtime.communication.channel` has collectives in the order in which they are started, on a thread (CPU) or a
stream (CUDA); :mod:`weft.runtime.communication.instructions` says what a rank does in a program of computation and
communication, and :mod:`weft.runtime.communication.executor` does it, with the kernels of
:mod:`weft.runtime.communication.calls`. :mod:`weft.runtime.communication.sharded_optimizer` trains a module data
parallel, each rank with its slice of the optimizer's states. What makes instructions of a program is
:mod:`weft.app.communication`.
"""
