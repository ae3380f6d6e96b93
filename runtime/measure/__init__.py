"""What do stages cost on this machine, and how did a run compare with its plan?

In: a training with all stages, or timelines of a plan. Out: seconds and bytes of every pass of every stage
(:mod:`~weft.runtime.measure.measure_stages`; :mod:`~weft.runtime.measure.stage_costs` has the file
``weft.stage-costs/1`` and the block problem with these costs), and a problem whose durations and transfers are
corrected by measurements and by the executor's overhead between blocks (:mod:`~weft.runtime.measure.fitting`).
:mod:`~weft.runtime.measure.links` measures messages between ranks, :mod:`~weft.runtime.measure.transport_check` checks
and times the transports of a machine. For ``weft calibrate``, :mod:`~weft.runtime.measure.kernels` times single kernels
and :mod:`~weft.runtime.measure.rank_costs` messages and collectives. :mod:`~weft.runtime.measure.measure` has the
timers, :mod:`~weft.runtime.measure.stage_feeds` the inputs and gradients for measuring a stage.
"""
