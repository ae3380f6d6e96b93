"""What does every rank do, in which order, and is that proven before anything is launched?

In: a schedule (:mod:`weft.solver.schedule`). Out: a :class:`~weft.runtime.plan.plan.Plan`, one list of instructions per
rank (:mod:`~weft.runtime.plan.program`), lowered from the schedule (:mod:`~weft.runtime.plan.lowering`) and proven
complete and free of deadlock (:mod:`~weft.runtime.plan.check`); and the receive buffer of every message
(:mod:`~weft.runtime.plan.buffers`), checked by :mod:`~weft.runtime.plan.check_buffers`.
:mod:`~weft.runtime.plan.stage_graph` recognises the stages of a problem. :mod:`~weft.runtime.plan.timeline` has the
measured times of a run. Nothing here imports torch.
"""
