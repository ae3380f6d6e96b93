"""Whether disjoint groups of GPUs can hold and compute all layers in time: exact over the assignment of layers.

Equal layers are one kind, so a group's work is a number of layers of each kind: a *load*. A load is possible on
``degree`` GPUs within a time if its work for all micro-batches ends by then and its weights fit beside the activations
of one micro-batch. A dynamic program over i finds the fewest GPUs on which the first i groups can have given numbers of
layers of each kind: the numbers are integers, which an even division of work ignores (80 layers on 32 groups of two
GPUs are three on some group, not two and a half).

The order of layers, cuts and chunks do not matter: in every case each group has some number of layers of each kind. So
without a cover there is no schedule within the time, for any number of chunks a group, in a V or in a loop.

Costs of layers are in whole nanoseconds and bytes. Bounds over all placements
(:mod:`weft.models.tensor_parallel.bound.any_placement`) must hold for every cut, so each number here is a *lower bound*
on a layer's cost to its stage: shared tensors (a tied table, an activation kept by several layers) are not counted, as
another layer of the stage may already have them; of several ways to compute a layer at one degree (co-sharded parts)
the least of each number counts.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.models.candidates.stages import Backward, nanoseconds
from weft.models.layers.costs import LayerCost
from weft.solver.control.clock import checkpoint

_Table = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LayerTerms:
    """Tables with a row a layer and a column for each of ``degrees``, numbers of GPUs that compute it together.

    ``load``: nanoseconds of one micro-batch on each GPU, forward and backward. ``static``: bytes of parameters,
    gradients and optimizer state on each. ``kept``: bytes of a micro-batch's activations on each, from the forward to
    the end of the input gradient. ``forward``: nanoseconds of the forward. ``back``: of the part that the previous
    layer waits for (the input gradient, or the whole backward if it is never split). ``is_row``: whether every layer
    waits for the previous one in forwards, and conversely in backwards; if not, ``kept``, ``forward`` and ``back`` do
    not apply to several layers. ``is_split``: whether weight gradients may run last.
    """

    degrees: tuple[int, ...]
    load: _Table
    static: _Table
    kept: _Table
    forward: _Table
    back: _Table
    is_row: bool
    is_split: bool

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.load)

    @property
    def way(self) -> int:
        """The minimum nanoseconds of a micro-batch forwards and back; 0 if unknown."""
        return int((self.forward.min(axis=1) + self.back.min(axis=1)).sum()) if self.is_row else 0

    def replicated(self, copies: int) -> LayerTerms:
        """The layers of ``copies`` of the model, of which each runs its own micro-batches."""
        load, static, kept, forward, back = (
            np.tile(table, (copies, 1)) for table in (self.load, self.static, self.kept, self.forward, self.back))
        return LayerTerms(self.degrees, load, static, kept, forward, back, self.is_row and copies == 1, self.is_split)


def terms_of(costs: Mapping[int, Sequence[LayerCost]], others: Sequence[Sequence[LayerCost]],
             bytes_per_parameter: int, modes: Sequence[Backward], *, is_row: bool) -> LayerTerms:
    """The terms of layers that cost ``costs`` by degree, and may cost any of ``others`` on one GPU.

    ``modes``: the allowed kinds of backward. ``is_row``: whether layers are consecutive.
    """
    degrees = tuple(sorted(costs))
    is_split = "split" in modes
    ways = [[costs[degree], *(others if degree == 1 else ())] for degree in degrees]

    def table(number: int) -> _Table:
        found = [[min(_least(way[layer], bytes_per_parameter, is_split)[number] for way in at) for at in ways]
                 for layer in range(len(costs[degrees[0]]))]
        return np.array(found, dtype=np.int64)

    trains = [bool(cost.backward) for cost in costs[degrees[0]]]
    # A layer without gradients keeps nothing, and earlier layers need not wait for it in the backward.
    load, static, kept, forward, back = map(table, range(5))
    return LayerTerms(degrees, load, static, kept, forward, back, is_row and (all(trains) or not any(trains)), is_split)


def _least(cost: LayerCost, bytes_per_parameter: int, is_split: bool) -> tuple[int, int, int, int, int]:
    """Load, static bytes, kept bytes, forward, and back."""
    shared = sum(count for _, count in cost.shared_parameters)
    kept = cost.activation_bytes - sum(size for _, size in cost.shared_activations) if cost.backward else 0
    whole = back = nanoseconds(cost.backward)
    if is_split and cost.input_grad is not None and cost.weight_grad is not None:
        back = nanoseconds(cost.input_grad)
        whole = min(whole, back + nanoseconds(cost.weight_grad))  # both parts are rounded
    return (nanoseconds(cost.forward) + whole, bytes_per_parameter * (cost.parameters - shared), max(0, kept),
            nanoseconds(cost.forward), back)


#: Maximum number of distinguished counts of layers by kind; beyond it the most similar kinds are merged, with the least
#: of each of their numbers. (81 x 2 x 2 are a model with an embedding and a head.)
_MOST_STATES = 1000
#: Maximum choices of layers on all GPUs that are tested individually; more are grouped by their time.
_MOST_CHOICES = 32
_Numbers = NDArray[np.int64]
_Loads = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class _Kind:
    """``count`` layers alike; rows of the terms."""

    count: int
    load: tuple[int, ...]
    static: tuple[int, ...]
    kept: tuple[int, ...]

    def merged(self, other: _Kind) -> _Kind:
        """Layers of both with the least of each number."""
        return _Kind(self.count + other.count, *(tuple(map(min, a, b)) for a, b in (
            (self.load, other.load), (self.static, other.static), (self.kept, other.kept))))

    def loss(self, other: _Kind) -> float:
        """The reduction of the total if both are merged, as a share, over all layers."""
        both = self.merged(other)
        return sum(kind.count * sum(1 - least / most for least, most in zip(
            (*both.load, *both.static), (*kind.load, *kind.static), strict=True) if most) for kind in (self, other))


@dataclass(frozen=True, eq=False)
class GroupCover:
    """Layers of ``terms`` on ``gpus`` GPUs of ``capacity`` bytes, for ``micro_batches`` micro-batches.

    ``fills``: whether groups wait for their first micro-batch; else only the rate of a steady state is bounded.
    """

    terms: LayerTerms
    gpus: int
    capacity: int
    micro_batches: int
    fills: bool = True

    def covers(self, most: int) -> Iterator[bool]:
        """For every choice of layers on all GPUs, or group of choices, with which groups can cover the rest within
        ``most`` nanoseconds: whether it has any such layers."""
        for chosen in self._together(most):
            checkpoint()
            if self._covered(chosen, most):
                yield bool(chosen.any(axis=1).any())

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of layers of each kind."""
        return tuple(kind.count for kind in self._kinds)

    def loads(self, degree: int, most: int) -> list[tuple[int, ...]]:
        """The largest numbers of layers by kind that a group of ``degree`` GPUs can have in ``most`` nanoseconds, if no
        layer is on all GPUs."""
        found = self._loads(self.counts, most // self.micro_batches, self.capacity)
        return [load for of, load in found if of == degree]

    @property
    def _kinds(self) -> tuple[_Kind, ...]:
        return self._sorted[0]

    @cached_property
    def _sorted(self) -> tuple[tuple[_Kind, ...], tuple[int, ...]]:
        terms = self.terms
        kept = terms.kept if terms.is_row else np.zeros_like(terms.kept)
        rows = [tuple(map(tuple, row)) for row in zip(terms.load.tolist(), terms.static.tolist(), kept.tolist(),
                                                      strict=True)]
        kinds = [_Kind(count, *row) for row, count in Counter(rows).items()]
        kind_of = list(map(list(dict.fromkeys(rows)).index, rows))
        while np.prod([kind.count + 1.0 for kind in kinds]) > _MOST_STATES and len(kinds) > 1:
            checkpoint()
            _, i, j = min((kinds[i].loss(kinds[j]), i, j) for j in range(len(kinds)) for i in range(j))
            kinds[i] = kinds[i].merged(kinds.pop(j))
            kind_of = [i if c == j else c - (c > j) for c in kind_of]
        return tuple(kinds), tuple(kind_of)

    def _together(self, most: int) -> Iterator[_Numbers]:
        """Numbers of layers by kind on all GPUs, a row a choice: individually if they are few, else grouped by similar
        time. Choices without enough time even for fractional layers on groups are left out."""
        numbers = self._choices
        busy = numbers @ self._everywhere[0]
        rest = self._counts - numbers
        spent = busy * self.gpus + rest @ self._least_work
        left = (spent * self.micro_batches <= most * self.gpus) & ((rest == 0) | self._has_room).all(axis=1)
        alone = ~numbers.any(axis=1)
        yield from (numbers[here] for here in (alone & left,) if here.any())
        chosen, times = numbers[left & ~alone], busy[left & ~alone]
        if len(chosen) <= _MOST_CHOICES:
            yield from chosen[:, None]
        else:
            levels = (times * _MOST_CHOICES) // (int(times.max()) + 1)
            yield from (chosen[levels == level] for level in np.unique(levels))

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        return np.array(self.counts)

    @cached_property
    def _choices(self) -> _Numbers:
        if self.gpus not in self.terms.degrees or self.gpus == 1:
            return np.zeros((1, len(self._kinds)), dtype=np.int64)
        numbers = itertools.product(*(range(kind.count + 1) for kind in self._kinds))
        return np.array(list(numbers), dtype=np.int64)

    @cached_property
    def _everywhere(self) -> _Numbers:
        """Load and bytes of a layer of each kind on all GPUs."""
        return np.array([[kind.load[-1] for kind in self._kinds], [_held(kind)[-1] for kind in self._kinds]])

    @cached_property
    def _has_room(self) -> NDArray[np.bool_]:
        """By kind, whether a layer fits at any degree."""
        return np.array([min(_held(kind)) <= self.capacity for kind in self._kinds])

    @cached_property
    def _least_work(self) -> NDArray[np.int64]:
        """By kind, the least of degree times load for which a layer fits."""
        return np.array([min((degree * load for degree, load, held in zip(
            self.terms.degrees, kind.load, _held(kind), strict=True) if held <= self.capacity), default=0)
            for kind in self._kinds])

    def _covered(self, together: _Numbers, most: int) -> bool:
        """Whether groups can have all layers except those of one of the rows of ``together``."""
        busy, held = (int(amount.min()) for amount in self._everywhere @ together.T)
        room = self.capacity - held
        counts = self.counts
        if room < 0 or self.micro_batches * busy > most:
            return False
        least: NDArray[np.int64] = np.full([count + 1 for count in counts], self.gpus + 1, dtype=np.int64)
        least[tuple(together.T)] = 0
        for number in range(self.gpus + 1):
            if least[counts] <= self.gpus:
                return True
            # A group may compute layers on all GPUs while it waits for its own first layer.
            idle = 0 if busy else self._before[min(_bucket(number), len(self._before) - 1)]
            time = (most - idle) // self.micro_batches - busy
            following = least
            for degree, load in self._loads(counts, time, room):
                places = [np.maximum(np.arange(count + 1) - has, 0) for count, has in zip(counts, load, strict=True)]
                following = np.minimum(following, least[np.ix_(*places)] + degree)
            if (following == least).all():  # later groups have no more time
                return False
            least = following
        return False

    @cached_property
    def _before(self) -> tuple[int, ...]:
        """Idle nanoseconds of the i-th group, by first layer: while the first micro-batch is in the layers before it,
        at least i, and while the last one's gradient goes back through them."""
        terms = self.terms
        if not terms.is_row or not self.fills:
            return (0,)
        idle = terms.forward.min(axis=1)
        if not terms.is_split:
            idle = idle + terms.back.min(axis=1)
        return (0, *np.cumsum(idle).tolist())

    def prices(self, most: int) -> NDArray[np.float64]:
        """Shares of all GPUs that each layer takes at each degree, if none is computed by all GPUs: layers of the most
        frequent kind take an equal part of their group, the largest that ``most`` allows; the others nothing. Over all
        layers they sum to at most 1."""
        main = max(range(len(self._kinds)), key=lambda c: self._kinds[c].count)
        only = tuple(kind.count if c == main else 0 for c, kind in enumerate(self._kinds))
        loads = dict((degree, load[main]) for degree, load in self._loads(only, most // self.micro_batches,
                                                                          self.capacity))
        shares = [degree / loads[degree] / self.gpus if degree in loads else math.inf for degree in self.terms.degrees]
        found = np.zeros((self.terms.layers, len(shares)))
        found[:, [degree >= self.gpus for degree in self.terms.degrees]] = math.inf
        for layer, c in enumerate(self._sorted[1]):
            if c == main:
                found[layer] = shares
        return found

    @cached_property
    def _loads(self) -> _LoadsOf:
        return _LoadsOf(self._kinds, self.terms.degrees, self.gpus)


def _held(kind: _Kind) -> tuple[int, ...]:
    """Bytes of a layer of ``kind`` on each GPU, by degree."""
    return tuple(map(sum, zip(kind.static, kind.kept, strict=True)))


def _bucket(number: int) -> int:
    """``number`` rounded down to a power of two, so that few times are distinguished."""
    return 1 << number.bit_length() - 1 if number else 0


class _LoadsOf:
    """The largest loads of a group, each with its number of GPUs."""

    def __init__(self, kinds: Sequence[_Kind], degrees: Sequence[int], gpus: int) -> None:
        self.kinds, self.degrees, self.gpus = kinds, degrees, gpus
        self.known = lru_cache(maxsize=256)(self._made)

    def __call__(self, rest: tuple[int, ...], time: int, room: int) -> _Loads:
        """The loads from ``rest`` (layers by kind) within ``time`` for a micro-batch and ``room`` bytes."""
        return self.known(rest, time, room)

    def _made(self, rest: tuple[int, ...], time: int, room: int) -> _Loads:
        kinds, found = self.kinds, []
        order = sorted(range(len(kinds)), key=lambda c: rest[c])  # the most frequent kind last: its number follows

        def extend(column: int, place: int, load: list[int], time: int, room: int) -> Iterator[tuple[int, ...]]:
            checkpoint()
            c = order[place]
            work, held = kinds[c].load[column], kinds[c].static[column] + kinds[c].kept[column]
            most = min(rest[c], time // work if work else rest[c], room // held if held else rest[c])
            last = place == len(order) - 1
            for number in range(most, (most if last else 0) - 1, -1):
                load[c] = number
                if last:
                    yield tuple(load)
                else:
                    yield from extend(column, place + 1, load, time - number * work, room - number * held)

        for column, degree in enumerate(self.degrees):
            if degree >= self.gpus or time < 0 or room < 0:  # all GPUs together are no group
                continue
            loads = set(extend(column, 0, [0] * len(rest), time, room))
            found += [(degree, load) for load in loads if any(load) and not any(
                other != load and all(a >= b for a, b in zip(other, load, strict=True)) for other in loads)]
        return tuple(found)
