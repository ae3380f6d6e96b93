"""What does ``weft replay`` do with a plan file?

In: a plan file and :class:`~weft.runtime.replay.options.ReplayOptions`. Out, on rank 0, a
:class:`~weft.runtime.replay.run.Replay`: the measured timeline compared with the plan, losses, and latencies.
:mod:`~weft.runtime.replay.replay` joins the ranks, and predicts the step from ranks that were run alone;
:mod:`~weft.runtime.replay.run` runs the plan, emulated or once for each batch of a training.
:mod:`~weft.runtime.replay.single_rank` runs one rank alone on one device, :mod:`~weft.runtime.replay.planned_steps` a
plan for a few steps before training.
"""
