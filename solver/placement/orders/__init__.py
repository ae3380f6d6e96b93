"""Which stages does one topological order of the groups allow? An order comes in, its best cut goes out.

``depth_first`` makes random orders, ``intervals`` the sums that every cut is made of, ``slice_order`` cuts for devices
of any kinds, and for stages on several of them.
"""

from weft.solver.placement.orders.slice_order import depth_first_order, slice_order

__all__ = ["depth_first_order", "slice_order"]
