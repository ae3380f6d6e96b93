"""Operators computed by several devices together: layouts, the collectives they need, groups of devices, shapes."""
