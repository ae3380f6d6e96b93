"""How do tensors move between ranks? One small interface, and one table of transports.

In: a session (:mod:`weft.runtime.ranks.session`) and all ranks' buffer tables (:mod:`weft.runtime.plan.buffers`). Out:
one rank's :class:`~weft.runtime.transports.interface.Transport`, which posts receives and starts sends. The tables
determine every message: a transfer refers to an entry of a table. After
:func:`~weft.runtime.transports.registry.open_transport`, a transfer allocates no memory for tensors and makes no
intermediate copy; only a non-contiguous result is copied once for sockets and ``nccl``, to a staging buffer that is
allocated at its first use.

A message of unknown shape is preceded by a description of fixed size (:mod:`.tensors`), and its buffer grows on demand:
over process groups the tensors follow (:mod:`.process_groups`), in shared memory the receiver reads them from the
sender's memory (:mod:`.one_host.one_sided_reads`).

:mod:`~weft.runtime.transports.interface` has the roles, :mod:`~weft.runtime.transports.registry` the list. Sockets and
``nccl`` are built on :mod:`~weft.runtime.transports.process_groups`; ``shared``, ``symmetric`` and ``emulated`` on
:mod:`~weft.runtime.transports.one_host`, where slots on GPUs are opened by CUDA IPC or are in symmetric memory;
``gloo`` uses shared memory within a host and sockets between hosts (:mod:`.by_host`).
"""
