"""Layouts of a tensor on several devices, and conversions between them. Layouts in; steps out.

:mod:`weft.models.layouts.layout` has the vectors <replicas, value splits, splits per dimension> and the elements on
each device, :mod:`weft.models.layouts.steps` the primitives, :mod:`weft.models.layouts.conversion` their costs on a
cluster and the cheapest conversion, within a group of devices and between two.
"""
