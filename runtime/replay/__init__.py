"""What does ``weft replay`` do with a plan file?

In: a plan file and :class:`~weft.runtime.replay.options.ReplayOptions`. Out, on rank 0, a
:class:`~weft.runtime.replay.result.Replay`: the measured timeline beside the plan, losses, and latencies. This is the
top of the runtime: :mod:`~weft.runtime.replay.replay` joins the ranks, :mod:`~weft.runtime.replay.run` runs the plan,
emulated or once for each batch of a training. :mod:`~weft.runtime.replay.single_rank` runs one rank by itself on one
device, and :mod:`~weft.runtime.replay.prediction` says what step such ranks would make together;
:mod:`~weft.runtime.replay.calibration` runs a plan for a few steps before anything is trained.
"""
