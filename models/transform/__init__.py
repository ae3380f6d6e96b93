"""Hand-written parallelization plans. Operators annotated with their splits in; parts and communication out.

:mod:`weft.models.transform.program` has the notation and the operators, :mod:`weft.models.transform.backward` gradients
with their inputs, updates and recomputation. :mod:`weft.models.transform.transformations` cuts, places and orders,
:mod:`weft.models.transform.preserving` derives the communication, and :mod:`weft.models.transform.plan` is the order,
and the interface for writing a plan. Its open decisions (:mod:`weft.models.transform.choices`) are searched as block
problems (:mod:`weft.models.transform.as_blocks.problem`), and the answer is checked against the inputs of parts
(:mod:`weft.models.transform.auditing`). :mod:`weft.models.transform.tensor_parallel` finds cuts over a group of
devices, and :mod:`weft.models.transform.captured` makes programs from exported PyTorch modules.
"""
