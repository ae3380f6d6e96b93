"""Parts for backends: chains of operators, a product with its pointwise readers, regions of a graph.

All are connected and convex. Those of a run of consecutive units in the graph's order are therefore convex; their
connected components are, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from weft.runtime.backends.graph import UnitGraph
from weft.solver.placement.cover.problem import between

#: Operators that compute each number from a few others at its place: those whose memory traffic fusion saves.
POINTWISE = {"add", "add_", "sub", "mul", "mul_", "div", "relu", "relu_", "gelu", "silu", "silu_", "sigmoid", "tanh",
             "leaky_relu", "leaky_relu_", "hardtanh", "hardtanh_", "hardswish", "hardswish_", "relu6", "pow", "rsqrt",
             "sqrt", "exp", "neg", "where", "clamp", "masked_fill", "to", "dropout", "batch_norm", "hardsigmoid",
             "hardsigmoid_", "softplus", "erf", "type_as", "ne", "eq", "gt", "lt"}
#: The numbers of consecutive segments in a region, beside the whole graph and its repetitions.
LENGTHS = (1, 2, 4)

_Computes = Callable[[UnitGraph, int], bool]


def singles(graph: UnitGraph) -> Iterator[Collection[int]]:
    """Each unit by itself."""
    for unit in range(len(graph.units)):
        yield (unit,)


def chains(graph: UnitGraph, patterns: Sequence[Sequence[str]]) -> Iterator[Collection[int]]:
    """Units whose operators are those of a pattern, each read by the next one alone."""
    for pattern in patterns:
        for unit in range(len(graph.units)):
            found = [unit]
            while graph.kinds(found[-1]) == (pattern[len(found) - 1],):
                if len(found) == len(pattern):
                    yield tuple(found)
                    break
                if len(graph.after[found[-1]]) != 1:
                    break
                found.append(graph.after[found[-1]][0])


def fused(graph: UnitGraph) -> Iterator[Collection[int]]:
    """Each unit with the pointwise ones that follow it, as long as each is read by the next one alone."""
    for unit in range(len(graph.units)):
        found = [unit]
        while len(readers := graph.after[found[-1]]) == 1 and set(graph.kinds(readers[0])) <= POINTWISE:
            found.append(readers[0])
            if between(graph.after, found) is None:
                yield tuple(found)


def regions(computes: _Computes = lambda graph, unit: True) -> Callable[[UnitGraph], Iterator[Collection[int]]]:
    """Regions of units for which ``computes`` holds: all consecutive ones, and shorter ones, cut where one value
    passes: one, two or four such segments, or as many as repeat in the graph (the layers of a model)."""
    def found(graph: UnitGraph) -> Iterator[Collection[int]]:
        places = {*narrow_places(graph)}
        run: list[int] = []
        for unit in range(len(graph.units) + 1):
            if unit < len(graph.units) and graph.is_plain(unit) and computes(graph, unit):
                run.append(unit)
            elif run:
                yield from _of_run(graph, run, places)
                run = []

    return found


def regions_and_fused(graph: UnitGraph) -> Iterator[Collection[int]]:
    """All :func:`regions`, then all :func:`fused`: for backends that compile graphs."""
    yield from regions()(graph)
    yield from fused(graph)


def narrow_places(graph: UnitGraph) -> list[int]:
    """The units before which at most one value passes from earlier ones to later ones."""
    passing = [0] * (len(graph.units) + 1)
    for maker, readers, _ in graph.values:
        if maker != readers[-1]:
            passing[maker + 1] += 1
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
    """The most frequent distance, in segments, between equal ones."""
    last: dict[object, int] = {}
    apart: Counter[int] = Counter()
    for i, sign in enumerate(signs):
        if sign in last:
            apart[i - last[sign]] += 1
        last[sign] = i
    return [distance for distance, _ in apart.most_common(1)]
