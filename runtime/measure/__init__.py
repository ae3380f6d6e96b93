"""What do stages cost on this machine, and how did a run compare with its plan?

In: a training with all stages, or timelines of a plan. Out: seconds and bytes of every pass of every stage
(:mod:`~weft.runtime.measure.measure_stages`, the file ``weft.stage-costs/1`` of
:mod:`~weft.runtime.measure.stage_costs`), a block problem with these costs, and a problem whose durations and transfers
are corrected by measurements, and by the executor's time between blocks (:mod:`~weft.runtime.measure.fitting`).
:mod:`~weft.runtime.measure.links` measures messages between ranks, :mod:`~weft.runtime.measure.transport_check` checks
and times each transport of a machine; :mod:`~weft.runtime.measure.kernels` times single kernels,
:mod:`~weft.runtime.measure.rank_costs` messages and collectives among ranks (both for ``weft calibrate``);
:mod:`~weft.runtime.measure.measure` has the timers, :mod:`~weft.runtime.measure.stage_feeds` the inputs and gradients
for measuring a stage.
"""
