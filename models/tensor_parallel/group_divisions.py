"""Into which groups of two sizes should the GPUs be divided, so that whole layers leave least of them idle?

Layers on groups of one size often leave each group a part of a layer too little: 80 layers on 16 groups of four are
five on each, and the head is too much. Some groups of another size beside them take what is left. For each two sizes
the least time of a micro-batch is found for which groups of these sizes can have all layers (without regard to order,
as in :mod:`weft.models.tensor_parallel.bound.group_cover`), and for that time the division with the fewest groups: each
group more keeps another micro-batch in flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from weft.models.tensor_parallel.bound.group_cover import GroupCover
from weft.models.tensor_parallel.bound.layer_terms import LayerTerms
from weft.solver.control.clock import checkpoint

__all__ = ["divisions"]

#: The least time is known to such a share of it.
_CLOSE = 1 / 2048
_Load = tuple[int, ...]


def divisions(terms: LayerTerms, gpus: int, capacity: int, most: float) -> list[tuple[int, ...]]:
    """The GPUs of each group, larger groups first, for every two sizes with which a micro-batch takes no more than
    ``most`` nanoseconds of any group."""
    cover = GroupCover(terms, gpus, capacity, 1, fills=False)
    longest = min(most, int(terms.load.max(axis=1).sum()))  # of one group that has all layers
    found = []
    for small, large in itertools.combinations((degree for degree in terms.degrees if degree < gpus), 2):
        low, high = 0, int(longest)
        best = _fewest(cover, small, large, high)
        while best is not None and high - low > _CLOSE * high:
            middle = (low + high) // 2
            shorter = _fewest(cover, small, large, middle)
            low, high, best = (middle, high, best) if shorter is None else (low, middle, shorter)
        if best is not None:
            found.append(best)
    return found


def _fewest(cover: GroupCover, small: int, large: int, most: int) -> tuple[int, ...] | None:
    """The division with the fewest groups that can have all layers in ``most`` nanoseconds, both sizes in it."""
    some = {degree: _together(cover, degree, most) for degree in (small, large)}
    for number in range((cover.gpus - 1) // large, 0, -1):
        checkpoint()
        rest, odd = divmod(cover.gpus - number * large, small)
        if not odd and any(all(a + b >= count for a, b, count in zip(one, other, cover.counts, strict=True))
                           for one in some[large][number] for other in some[small][rest]):
            return (large,) * number + (small,) * rest
    return None


def _together(cover: GroupCover, degree: int, most: int) -> list[Sequence[_Load]]:
    """By number of groups of ``degree`` GPUs: the largest numbers of layers by kind that they can have."""
    loads = cover.loads(degree, most)
    found: list[Sequence[_Load]] = [[(0,) * len(cover.counts)]]
    for _ in range(cover.gpus // degree):
        sums = {tuple(min(count, a + b) for count, a, b in zip(cover.counts, had, more, strict=True))
                for had in found[-1] for more in loads} or set(found[-1])
        found.append([one for one in sums if not any(
            other != one and all(a >= b for a, b in zip(other, one, strict=True)) for other in sums)])
    return found
