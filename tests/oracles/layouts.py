"""Exhaustive searches for conversions of layouts, which share no code with the one that is judged.

:func:`cheapest_vectors` relaxes costs between all vectors over a group until nothing changes, whatever devices hold
what. :func:`cheapest_placed` looks at devices: a state says the box and the term that each holds, and every way to put
devices into ordered groups is tried for every primitive. Both price rings by their own formulas.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

#: Replicas, terms, and parts of each dimension.
Vector: TypeAlias = tuple[int, ...]
#: Of each device its term, and the low and high ends of its box.
State: TypeAlias = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
#: Seconds of a step by its kind, the bytes that each device holds before, and the group.
Price: TypeAlias = Callable[[str, float, Sequence[int]], float]


def cheapest_vectors(devices: int, shape: Sequence[int], itemsize: int, price: Price) -> dict[tuple[Vector, Vector],
                                                                                           float]:
    """The least cost between every two vectors over ``devices``, by relaxing all until nothing changes."""
    vectors = [v for v in itertools.product(*[range(1, devices + 1)] * (len(shape) + 2)) if _product(v) == devices]
    steps: dict[tuple[Vector, Vector], float] = {}
    for one in vectors:
        held = _product(shape) * itemsize / _product(one[2:])
        for other in vectors:
            away = [i for i in range(len(one)) if one[i] != other[i]]
            if len(away) != 2:
                continue
            giver, taker = sorted(away, key=lambda i: other[i] > one[i])
            if one[giver] % other[giver] or other[taker] % one[taker]:
                continue
            k = one[giver] // other[giver]
            if k < 2 or other[taker] // one[taker] != k:
                continue
            kind = _kind(giver, taker)
            if kind is not None and all(size % parts == 0 for size, parts in zip(shape, other[2:], strict=True)):
                steps[one, other] = min(price(kind, held, range(k)), steps.get((one, other), float("inf")))
    cost = {(one, other): 0.0 if one == other else float("inf") for one in vectors for other in vectors}
    changed = True
    while changed:
        changed = False
        for start in vectors:
            for (one, other), seconds in steps.items():
                if cost[start, one] + seconds < cost[start, other] - 1e-15:
                    cost[start, other] = cost[start, one] + seconds
                    changed = True
    return cost


def cheapest_placed(start: State, shape: Sequence[int], itemsize: int, price: Price) -> dict[State, float]:
    """The least cost from ``start`` to every state that steps within its devices reach, sends aside."""
    start = _named(start)
    best = {start: 0.0}
    queue = [(0.0, start)]
    while queue:
        cost, state = heapq.heappop(queue)
        if cost > best[state]:
            continue
        for seconds, other in _neighbours(state, shape, itemsize, price):
            if cost + seconds < best.get(other, float("inf")) - 1e-15:
                best[other] = cost + seconds
                heapq.heappush(queue, (cost + seconds, other))
    return best


def start_of(vector: Vector, shape: Sequence[int], devices: Sequence[int] | None = None) -> State:
    """A vector's state where devices count through replicas, terms and boxes, the last dimension fastest."""
    held = []
    for index in itertools.product(*map(range, vector)):
        box = tuple((size // parts * i, size // parts * (i + 1))
                    for size, parts, i in zip(shape, vector[2:], index[2:], strict=True))
        held.append((index[1], box))
    order = list(devices) if devices is not None else list(range(len(held)))
    return _named(tuple(held[order.index(device)] for device in sorted(order)))


def _kind(giver: int, taker: int) -> str | None:
    if giver >= 2:
        return "all_gather" if taker == 0 else "all_to_all" if taker >= 2 else None
    if giver == 1:
        return "all_reduce" if taker == 0 else "reduce_scatter"
    return "term" if taker == 1 else "slice"


def _neighbours(state: State, shape: Sequence[int], itemsize: int, price: Price) -> Iterator[tuple[float, State]]:
    count = len(state)
    held = _product([high - low for low, high in state[0][1]]) * itemsize
    for k in (k for k in range(2, count + 1) if count % k == 0):
        for groups in _groupings(list(range(count)), k):
            for kind, source, target in _acts(len(shape)):
                seconds = 0.0 if kind in ("slice", "term") else max(price(kind, held, group) for group in groups)
                orders = [list(itertools.permutations(range(k)))] * len(groups) if target is not None or kind == "term"\
                    else [[tuple(range(k))]] * len(groups)
                results = [[_acted(kind, [state[d] for d in group], source, target, order, shape) for order in given]
                           for group, given in zip(groups, orders, strict=True)]
                if not all(any(found is not None for found in given) for given in results):
                    continue
                for chosen in itertools.product(*([f for f in given if f is not None] for given in results)):
                    new: list[tuple[object, tuple[tuple[int, int], ...]]] = [(0, ())] * count
                    for group, found in zip(groups, chosen, strict=True):
                        for device, item in zip(group, found, strict=True):
                            new[device] = item
                    other = _regular(new)
                    if other is not None:
                        yield seconds, other


def _acts(dimensions: int) -> Iterator[tuple[str, int | None, int | None]]:
    for axis in range(dimensions):
        yield "all_gather", axis, None
        yield "slice", None, axis
        yield "reduce_scatter", None, axis
        yield from (("all_to_all", axis, other) for other in range(dimensions) if other != axis)
    yield "all_reduce", None, None
    yield "term", None, None


def _acted(kind: str, members: list[tuple[int, tuple[tuple[int, int], ...]]], source: int | None, target: int | None,
           order: Sequence[int], shape: Sequence[int]) -> list[tuple[object, tuple[tuple[int, int], ...]]] | None:
    """What each member holds after; ``None`` where the act means nothing for them."""
    terms, boxes = [term for term, _ in members], [box for _, box in members]
    term: object = terms[0]
    if kind in ("all_reduce", "reduce_scatter"):
        if len(set(boxes)) > 1 or len(set(terms)) < len(terms):
            return None
        term = frozenset(terms)
    elif len(set(terms)) > 1:
        return None
    box = boxes[0]
    if source is not None:
        along = sorted(b[source] for b in boxes)
        rest = {tuple(span for i, span in enumerate(b) if i != source) for b in boxes}
        if len(rest) > 1 or any(a[1] != b[0] for a, b in itertools.pairwise(along)):
            return None
        box = tuple((along[0][0], along[-1][1]) if i == source else span for i, span in enumerate(box))
    elif kind in ("slice", "term") and len(set(boxes)) > 1:
        return None
    if kind == "term":
        return [((term, i), box) for i in order]
    if target is None:
        return [(term, box)] * len(members)
    low, high = box[target]
    k = len(members)
    if (high - low) % k:
        return None
    part = (high - low) // k
    return [(term, tuple((low + part * i, low + part * (i + 1)) if axis == target else span
                         for axis, span in enumerate(box))) for i in order]


def _regular(held: list[tuple[object, tuple[tuple[int, int], ...]]]) -> State | None:
    """The state, if every box has the same terms, each held as often, and the boxes tile a grid."""
    by_box: dict[tuple[tuple[int, int], ...], list[object]] = {}
    for term, box in held:
        by_box.setdefault(box, []).append(term)
    kinds = list(by_box.values())
    counts = {tuple(sorted(kind.count(term) for term in set(kind))) for kind in kinds}
    if len(counts) > 1 or len(set(next(iter(counts)))) > 1 or any(set(kind) != set(kinds[0]) for kind in kinds):
        return None
    terms = set(kinds[0])
    if any(isinstance(term, frozenset) for term in terms):  # sums of the same terms, each term in one of them
        added = [one for term in terms if isinstance(term, frozenset) for one in term]
        if len(added) != len(set(added)):
            return None
    sizes = {tuple(high - low for low, high in box) for box in by_box}
    axes = [{box[i] for box in by_box} for i in range(len(next(iter(by_box))))]
    if len(sizes) > 1 or len(by_box) != _product([len(axis) for axis in axes]):
        return None
    return _named(tuple(held))


def _named(held: Sequence[tuple[object, tuple[tuple[int, int], ...]]]) -> State:
    """Terms numbered by the first device that holds each."""
    number: dict[object, int] = {}
    for term, _ in held:
        number.setdefault(term, len(number))
    return tuple((number[term], box) for term, box in held)


def _groupings(devices: list[int], k: int) -> Iterator[list[tuple[int, ...]]]:
    if not devices:
        yield []
        return
    first, rest = devices[0], devices[1:]
    for others in itertools.combinations(rest, k - 1):
        left = [device for device in rest if device not in others]
        yield from ([(first, *others), *groups] for groups in _groupings(left, k))


def _product(numbers: Sequence[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total
