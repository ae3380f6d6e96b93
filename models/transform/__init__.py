"""How is a model's parallelization planned by hand? Operators that say how they split in; parts and communication out.

:mod:`weft.models.transform.program` has the notation and the operators, :mod:`weft.models.transform.backward` gradients
with what they read, updates and recomputation. :mod:`weft.models.transform.transformations` cuts, places and orders,
:mod:`weft.models.transform.preserving` derives the communication, and :mod:`weft.models.transform.plan` is the order,
and how one writes a plan. What it leaves open (:mod:`weft.models.transform.choices`) is searched as block problems
(:mod:`weft.models.transform.as_blocks.problem`), and the answer held against what parts read
(:mod:`weft.models.transform.auditing`). :mod:`weft.models.transform.tensor_parallel` finds cuts over a group of
devices, and :mod:`weft.models.transform.captured` makes programs of exported PyTorch modules.
"""
