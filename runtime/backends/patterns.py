"""Patterns that find parts: chains of operators, an operator with its pointwise successors, regions of a graph.

All parts are connected and convex: consecutive units of a topological order are convex, and so are their connected
components.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from weft.runtime.backends.graph import UnitGraph
from weft.solver.placement.cover.problem import between

#: Pointwise operators: fusing them saves memory traffic.
POINTWISE = {"add", "add_", "sub", "mul", "mul_", "div", "relu", "relu_", "gelu", "silu", "silu_", "sigmoid", "tanh",
             "leaky_relu", "leaky_relu_", "hardtanh", "hardtanh_", "hardswish", "hardswish_", "relu6", "pow", "rsqrt",
             "sqrt", "exp", "neg", "where", "clamp", "masked_fill", "to", "dropout", "batch_norm", "hardsigmoid",
             "hardsigmoid_", "softplus", "erf", "type_as", "ne", "eq", "gt", "lt"}
#: The numbers of consecutive segments in a region, in addition to all segments and the period of repetition.
LENGTHS = (1, 2, 4)

_Computes = Callable[[UnitGraph, int], bool]


def singles(graph: UnitGraph) -> Iterator[Collection[int]]:
    """Each unit as a part."""
    for unit in range(len(graph.units)):
        yield (unit,)


def chains(graph: UnitGraph, patterns: Sequence[Sequence[str]]) -> Iterator[Collection[int]]:
    """Chains of units that match one of ``patterns``, each unit read by the next one alone."""
    for pattern in patterns:
        for unit in range(len(graph.units)):
            chain = [unit]
            while graph.kinds(chain[-1]) == (pattern[len(chain) - 1],):
                if len(chain) == len(pattern):
                    yield tuple(chain)
                    break
                if len(graph.after[chain[-1]]) != 1:
                    break
                chain.append(graph.after[chain[-1]][0])


def fused(graph: UnitGraph) -> Iterator[Collection[int]]:
    """Each unit with one or more pointwise successors, each unit read by the next one alone."""
    for unit in range(len(graph.units)):
        chain = [unit]
        while len(readers := graph.after[chain[-1]]) == 1 and set(graph.kinds(readers[0])) <= POINTWISE:
            chain.append(readers[0])
            if between(graph.after, chain) is None:
                yield tuple(chain)


def regions(computes: _Computes = lambda graph, unit: True) -> Callable[[UnitGraph], Iterator[Collection[int]]]:
    """A pattern of regions: consecutive units for which ``computes`` is true. Each maximal run is divided into segments
    where at most one value passes; a region is the whole run, or 1, 2 or 4 segments, or one period of the repeating
    segments (a layer of a model)."""
    def find(graph: UnitGraph) -> Iterator[Collection[int]]:
        places = {*narrow_places(graph)}
        run: list[int] = []
        for unit in range(len(graph.units) + 1):
            if unit < len(graph.units) and graph.is_plain(unit) and computes(graph, unit):
                run.append(unit)
            elif run:
                yield from _of_run(graph, run, places)
                run = []

    return find


def regions_and_fused(graph: UnitGraph) -> Iterator[Collection[int]]:
    """All :func:`regions`, then all :func:`fused`: for backends that compile graphs."""
    yield from regions()(graph)
    yield from fused(graph)


def narrow_places(graph: UnitGraph) -> list[int]:
    """The units i > 0 such that at most one value passes from units before i to the others."""
    passing = [0] * (len(graph.units) + 1)
    for producer, readers, _ in graph.values:
        if producer != readers[-1]:
            passing[producer + 1] += 1
            passing[readers[-1] + 1] -= 1
    found, total = [], 0
    for unit in range(len(graph.units)):
        total += passing[unit]
        if unit and total <= 1:
            found.append(unit)
    return found


def _of_run(graph: UnitGraph, run: Sequence[int], places: set[int]) -> Iterator[Collection[int]]:
    starts = [0, *(i for i, unit in enumerate(run) if unit in places and i)]
    segments = [list(run[a:b]) for a, b in zip(starts, [*starts[1:], len(run)], strict=True)]
    signs = [tuple(kind for unit in segment for kind in graph.kinds(unit)) for segment in segments]
    for length in sorted({len(segments), *LENGTHS, *_repeats(signs)}, reverse=True):
        for i in range(len(segments) - length + 1):
            yield from graph.components([unit for segment in segments[i:i + length] for unit in segment])


def _repeats(signs: Sequence[object]) -> list[int]:
    """The most frequent distance, in segments, between equal segments."""
    last: dict[object, int] = {}
    apart: Counter[int] = Counter()
    for i, sign in enumerate(signs):
        if sign in last:
            apart[i - last[sign]] += 1
        last[sign] = i
    return [distance for distance, _ in apart.most_common(1)]
