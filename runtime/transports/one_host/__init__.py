"""Messages between processes of one host: one side writes to, or reads from, the memory of the other.

:mod:`~weft.runtime.transports.one_host.one_sided` is the protocol, over memory that
:mod:`~weft.runtime.transports.one_host.shared_memory` makes; what no plan knows the shape of, receivers read
(:mod:`~weft.runtime.transports.one_host.one_sided_reads`).
"""
