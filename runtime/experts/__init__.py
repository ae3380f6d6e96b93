"""How does a mixture of experts train on several ranks while its gate becomes sparse, and its experts move?

In: a session, a module with :class:`~weft.runtime.experts.layer.ExpertLayer` in it, the placements of a family's
phases. Out: training steps (:mod:`~weft.runtime.experts.training`), equal to those of one process. Tokens are sent to
experts and back by an all-to-all of variable sizes, and experts compute grouped products
(:mod:`~weft.runtime.experts.layer`); the gate (:mod:`~weft.runtime.experts.gate`) selects the experts. Its measured
density determines when the next phase begins; then experts move with their optimizer state. Checkpoints have the
model's own names and record the phase.
"""
