"""How does one rank run its parts of a plan written by hand? Its instructions in; its parts' tensors out.

:mod:`weft.runtime.sharded.instructions` says what a rank does, :mod:`weft.runtime.sharded.executor` does it over
``torch.distributed``, and :mod:`weft.runtime.sharded.kernels` computes parts with torch, on any device. What makes
instructions of a plan is :mod:`weft.app.plans.lowering`.
"""
