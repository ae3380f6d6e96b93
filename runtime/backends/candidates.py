"""The parts of a graph that backends may compute, in the order in which measuring pays, and their cover problem.

Equal parts are measured once. The order is greedy by covered units: each unit counts half as much for each earlier part
that covers it. So the largest parts come first, and then those that cover other units, and wherever measuring stops,
all of the graph has been considered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.patterns import chains
from weft.runtime.backends.registry import EAGER, Backend
from weft.runtime.backends.trial import TrialResult
from weft.solver.placement.cover.problem import CoverPart, CoverProblem, Value


@dataclass(frozen=True)
class SimilarParts:
    """Parts of ``backend`` with the same ``key``, and so the same cost. ``places``: the units of each."""

    backend: Backend
    key: str
    places: tuple[tuple[int, ...], ...]

    @property
    def covered(self) -> set[int]:
        """The units of all these parts."""
        return {unit for place in self.places for unit in place}


def candidates_of(graph: UnitGraph, backend: Backend) -> list[SimilarParts]:
    """The parts that ``backend`` may compute, grouped by key; empty for eager.

    Raises :class:`~weft.runtime.backends.registry.BackendError` for a pattern that returns sets of units which are not
    connected and convex.
    """
    if backend.name == EAGER:
        return []
    patterns = backend.patterns
    found = chains(graph, patterns) if not callable(patterns) else patterns(graph)
    by_key: dict[str, list[tuple[int, ...]]] = {}
    for units in dict.fromkeys(tuple(sorted(set(units))) for units in found):
        graph.require_part(units, backend.name)
        if not all(map(graph.is_plain, units)):
            continue
        part = graph.part(units)
        if part.gives and backend.supports(part):
            by_key.setdefault(part.key, []).append(units)
    return _ordered(SimilarParts(backend, key, tuple(places)) for key, places in by_key.items())


def _ordered(candidates: Iterable[SimilarParts]) -> list[SimilarParts]:
    """``candidates`` in the order in which they are measured."""
    times, found = Counter[int](), list[SimilarParts]()
    listed = sorted(candidates, key=lambda one: (-len(one.places[0]), one.places[0]))
    waiting = [(-float(len(one.covered)), i) for i, one in enumerate(listed)]
    heapify(waiting)
    while waiting:  # counts only decrease, so the first with a current count is the next
        counted, i = heappop(waiting)
        now = -sum(0.5 ** times[unit] for unit in listed[i].covered)
        if now > counted:
            heappush(waiting, (now, i))
            continue
        times.update(listed[i].covered)
        found.append(listed[i])
    return found


def cover_problem(graph: UnitGraph, eager: TrialResult, measured: Sequence[tuple[SimilarParts, TrialResult]],
                  boundaries: Mapping[tuple[str, str], tuple[float, float]]) -> CoverProblem:
    """The problem of choosing parts that cover the graph. ``eager``: with the seconds of each unit. ``measured``: the
    trials; refused ones are ignored. ``boundaries``: by pair of backends, seconds per value and per byte."""
    found = [CoverPart(frozenset([unit]), EAGER, seconds) for unit, seconds in enumerate(eager.units)]
    for parts, trial in measured:
        if trial.refused is None:
            ratio = trial.seconds / max(trial.eager, 1e-12)
            found += [CoverPart(frozenset(units), parts.backend.name, ratio * sum(eager.units[unit] for unit in units))
                      for units in parts.places]
    values = [Value(unit, readers, {pair: fixed + per_byte * size for pair, (fixed, per_byte) in boundaries.items()})
              for unit, readers, size in graph.values]
    passed = {(value.maker, reader) for value in values for reader in value.readers}
    values += [Value(a, (b,)) for a, b in graph.order if (a, b) not in passed]
    return CoverProblem(len(graph.units), tuple(values), tuple(found))
