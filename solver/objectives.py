"""The objectives of a search."""

from __future__ import annotations

from collections.abc import Mapping

#: By name, the first by default: the least time of one step; the least time after which the next step can begin, as no
#: device (and no link) is busy with one for longer; the least time per micro-batch of the steady state; the least time
#: from a micro-batch's first start to its last end, at a throughput.
OBJECTIVES = ("makespan", "span", "rate", "latency")
#: The entry of a schedule's ``solver`` with the bound on each.
BOUND_OF: Mapping[str, str] = {"makespan": "makespan_bound", "span": "span_bound", "rate": "steady_bound",
                               "latency": "latency_bound"}
