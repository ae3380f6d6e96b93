"""What do stages cost on this machine, and what did a run take in comparison with its plan?

In: a training with all stages, or timelines of a plan. Out: seconds and bytes of every pass of every stage
(:mod:`~weft.runtime.measure.measure_stages`, the file ``weft.stage-costs/1`` of
:mod:`~weft.runtime.measure.stage_costs`), a block problem with these costs, and a problem whose durations and transfers
are corrected by what was measured, and by what the executor takes between blocks
(:mod:`~weft.runtime.measure.fitting`). :mod:`~weft.runtime.measure.links` says what messages cost between ranks,
:mod:`~weft.runtime.measure.transport_check` what each transport of a machine carries, and how fast beside others;
:mod:`~weft.runtime.measure.kernels` what single kernels take, :mod:`~weft.runtime.measure.rank_costs` messages and
collectives among ranks (both for ``weft calibrate``); :mod:`~weft.runtime.measure.measure` has the timers,
:mod:`~weft.runtime.measure.stage_feeds` the inputs and gradients that a stage is measured with.
"""
