"""How does one rank run its parts of a hand-written plan? Its instructions in; its parts' tensors out.

:mod:`weft.runtime.by_hand.instructions` defines a rank's instructions, :mod:`weft.runtime.by_hand.executor` runs them
over ``torch.distributed``, and :mod:`weft.runtime.by_hand.kernels` computes parts on any device by torch's operators
(:mod:`weft.runtime.by_hand.operators`) and autograd. :mod:`weft.app.plans.lowering` lowers a plan to instructions.
"""
