"""How does a tensor lie on several devices, and what brings it from one layout to another? Layouts in; steps out.

:mod:`weft.models.layouts.layout` has the vectors <replicas, value splits, splits per dimension> and what each device
holds under one, element by element, :mod:`weft.models.layouts.steps` the primitives,
:mod:`weft.models.layouts.conversion` what they cost on a cluster and the cheapest way from one layout to
another, within a group of devices and between two, and :mod:`weft.models.layouts.values` what steps do to numbers.
"""
