"""How does one rank run its parts of a plan written by hand? Its instructions in; its parts' tensors out.

:mod:`weft.runtime.by_hand.instructions` says what a rank does, :mod:`weft.runtime.by_hand.executor` does it over
``torch.distributed``, and :mod:`weft.runtime.by_hand.kernels` computes parts on any device: by torch's own operators
(:mod:`weft.runtime.by_hand.operators`), with autograd's gradients. What makes instructions of a plan is
:mod:`weft.app.plans.lowering`.
"""
