"""How does a mixture of experts train on several ranks while its gate becomes sparse, and its experts move?

In: a session, a module with :class:`~weft.runtime.experts.layer.ExpertLayer` in it, the placements of a family's
phases. Out: training steps (:mod:`~weft.runtime.experts.training`), equal to those of one process. Tokens go to experts
and back by an all-to-all of any sizes, and experts compute theirs in grouped products
(:mod:`~weft.runtime.experts.layer`); the gate (:mod:`~weft.runtime.experts.gate`) chooses them. Its measured density
decides when the next phase is due; then experts move with their optimizer state. Checkpoints are those of a model under
its own names, and record their phase.
"""
