"""How do tensors move between ranks? One small interface, and one table of transports.

In: a session (:mod:`weft.runtime.ranks.session`) and all ranks' buffer tables (:mod:`weft.runtime.plan.buffers`). Out:
one rank's :class:`~weft.runtime.transports.interface.Transport`, which posts receives and starts sends. The tables
determine every message: a transfer names an entry of a table, never a size. After
:func:`~weft.runtime.transports.registry.open_transport`, moving a tensor allocates no memory for tensors and makes no
intermediate copy; only a result that is not contiguous is copied once for sockets and ``nccl``, to a staging buffer
that is made when it is first needed.

Where the plan does not know a shape, a description of fixed size comes first (:mod:`.description`), and buffers grow on
demand: over process groups the tensors follow (:mod:`.two_messages`), in shared memory the receiver reads them from the
sender's memory (:mod:`.one_host.one_sided_reads`).

:mod:`~weft.runtime.transports.interface` has the roles, :mod:`~weft.runtime.transports.registry` the list. Sockets and
``nccl`` are built on :mod:`~weft.runtime.transports.process_groups`; ``shared``, ``symmetric`` and ``emulated`` on
:mod:`~weft.runtime.transports.one_host`, where slots on GPUs are opened by CUDA IPC or lie in symmetric memory;
``gloo`` takes shared memory within a host and sockets beyond it (:mod:`.near_and_far`).
"""
