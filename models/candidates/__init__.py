"""On which GPU is each layer? A spec in; placements on single GPUs as block problems out, and their requirements.

:mod:`weft.models.candidates.build` makes chains, Vs and loops of whole layers, cut by
:mod:`weft.models.candidates.stage_split`; :mod:`weft.models.candidates.memory_candidates` chains whose cuts and memory
are decided operator by operator. :mod:`weft.models.candidates.gpu_costs` finds the costs of a spec's model, and those
of its layers on each GPU; :mod:`weft.models.candidates.given_cut` reads the one cut that a spec may give.
:mod:`weft.models.candidates.estimate` estimates the memory of stages before any schedule is searched, and
:mod:`weft.models.candidates.placement_sources` makes placement problems from operator graphs.
:mod:`weft.models.candidates.sequence_candidates` cuts the micro-batches of any pipeline, and of a spec's placements,
into chunks of their sequence. :mod:`weft.models.candidates.alternatives` makes each stage's kept activations and split
backward choices.
"""
