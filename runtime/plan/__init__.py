"""What does every rank do, in which order, and is that proven before anything is launched?

In: a schedule (:mod:`weft.solver.schedule`). Out: a :class:`~weft.runtime.plan.plan.Plan`, one list of instructions a
rank (:mod:`~weft.runtime.plan.program`), lowered from the schedule (:mod:`~weft.runtime.plan.lowering`), proven
complete and free of deadlock (:mod:`~weft.runtime.plan.check`); and where every message lands
(:mod:`~weft.runtime.plan.buffers`), proven too (:mod:`~weft.runtime.plan.check_buffers`). The stages of a problem are
recognised in :mod:`~weft.runtime.plan.stage_graph`. :mod:`~weft.runtime.plan.timeline` holds the measured times of a
run. Nothing here needs torch.
"""
