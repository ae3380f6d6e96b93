"""How does one rank run its parts of a plan written by hand? Its instructions in; its parts' tensors out.

:mod:`weft.runtime.by_hand.instructions` says what a rank does, :mod:`weft.runtime.by_hand.executor` does it over
``torch.distributed``, and :mod:`weft.runtime.by_hand.kernels` computes parts with torch, on any device. What makes
instructions of a plan is :mod:`weft.app.plans.lowering`.
"""
