"""What does ``weft replay`` do with a plan file?

In: a plan file and :class:`~weft.runtime.replay.options.ReplayOptions`. Out, on rank 0, a
:class:`~weft.runtime.replay.run.Replay`: the measured timeline beside the plan, losses, and latencies. This is the top
of the runtime: :mod:`~weft.runtime.replay.replay` joins the ranks, and predicts the common step of ranks that were run
alone, :mod:`~weft.runtime.replay.run` runs the plan, emulated or once for each batch of a training.
:mod:`~weft.runtime.replay.single_rank` runs one rank alone on one device, :mod:`~weft.runtime.replay.planned_steps` a
plan for a few steps before any training.
"""
