"""How small can a largest load be at best? Bounds that need no search: groups of operators with their costs and devices
come in, a number goes out that no placement's largest load is below. One file a bound; :mod:`.registry` lists them."""

from weft.solver.placement.bounds.registry import BOUNDS, LowerBound, simple_bound

__all__ = ["BOUNDS", "LowerBound", "simple_bound"]
