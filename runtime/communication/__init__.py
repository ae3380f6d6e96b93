"""How do collectives overlap with computation on a rank? Programs of both in; tensors, and trained weights, out.

:mod:`weft.runtime.communication.channel` runs collectives in the order of their starts, on a thread (CPU) or a stream
(CUDA). :mod:`weft.runtime.communication.instructions` defines a rank's program of computation and communication;
:mod:`weft.runtime.communication.executor` runs it, with the kernels of :mod:`weft.runtime.communication.calls`.
:mod:`weft.runtime.communication.sharded_optimizer` trains a module data parallel with sharded optimizer states.
:mod:`weft.app.communication` lowers a program to instructions.
"""
