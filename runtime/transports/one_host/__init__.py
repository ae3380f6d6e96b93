"""Messages between processes of one host: one side writes to, or reads from, the other's memory.

:mod:`~weft.runtime.transports.one_host.one_sided` is the protocol, over memory that
:mod:`~weft.runtime.transports.one_host.shared_memory` makes; receivers read messages of unknown shape
(:mod:`~weft.runtime.transports.one_host.one_sided_reads`).
"""
