"""Every placement of a small problem by trying them all, costs counted in fractions; it shares nothing with the solver
but the problem's own fields.

Rows of stages and graphs of stages, on devices of several kinds and on several devices a stage. What is said here of
loads and memory is the text of :mod:`weft.solver.placement.problem`, written down a second time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from weft.solver.placement.problem import PlacementProblem

#: Sums of floats are rounded: memory that is exceeded by less than this share is not.
_ROUNDING = Fraction(1, 10**9)


@dataclass(frozen=True)
class Tried:
    """A placement that breaks no rule: its largest load, and how many stages are on its longest way."""

    load: Fraction
    depth: int


def every_row(problem: PlacementProblem) -> Iterator[Tried]:
    """All stages in a row."""
    for parts, after in _partitions(problem):
        for kinds, on in _devices(problem, len(parts)):
            costs = _costs(problem, parts, kinds, on)
            if costs is None:
                continue
            for order in itertools.permutations(range(len(parts))):
                at = {part: place for place, part in enumerate(order)}
                if all(at[a] < at[b] for a, b in after) and all(
                        _fits(problem, parts[p], kinds[p], on[p], len(order) - place) for p, place in at.items()):
                    yield Tried(max(costs), len(parts))
                    break


def every_graph(problem: PlacementProblem) -> Iterator[Tried]:
    """All graphs of stages."""
    for parts, after in _partitions(problem):
        depth = _depths(len(parts), after)
        for kinds, on in _devices(problem, len(parts)):
            costs = _costs(problem, parts, kinds, on)
            if costs is not None and all(_fits(problem, parts[p], kinds[p], on[p], depth[p])
                                         for p in range(len(parts))):
                yield Tried(max(costs), max(depth))


def best(tried: Iterator[Tried], slack: float = 0.0) -> tuple[Fraction, int] | None:
    """The least largest load, and the least depth within ``slack`` of it; ``None``: there is no placement."""
    found = set(tried)
    if not found:
        return None
    least = min(one.load for one in found)
    limit = least * (1 + Fraction(slack)) * (1 + _ROUNDING)
    return least, min(one.depth for one in found if one.load <= limit)


def _partitions(problem: PlacementProblem) -> Iterator[tuple[list[list[int]], set[tuple[int, int]]]]:
    """Divisions of the colocation classes into parts that do not wait for each other in a circle."""
    classes = problem.classes
    order = _order(problem)
    labels: list[list[int]] = [[0]]
    for _ in classes[1:]:
        labels = [[*row, more] for row in labels for more in range(max(row) + 2)]
    for row in labels:
        count = max(row) + 1
        if count > problem.devices:
            continue
        part_of = {node: row[c] for c, members in enumerate(classes) for node in members}
        after = {(part_of[a], part_of[b]) for a, b in order if part_of[a] != part_of[b]}
        if _acyclic(count, after):
            yield [sorted(node for node, part in part_of.items() if part == p) for p in range(count)], after


def _order(problem: PlacementProblem) -> set[tuple[int, int]]:
    """Which operators must not come after which: forward edges, and backward ones mirrored where they have to be."""
    forward = {node for members in problem.classes if any(not problem.nodes[i].backward for i in members)
               for node in members}
    found = set()
    for tensor in problem.tensors:
        for reader in tensor.consumers:
            if not problem.nodes[reader].backward:
                found.add((tensor.producer, reader))
            elif problem.nodes[tensor.producer].backward and not {tensor.producer, reader} <= forward:
                found.add((reader, tensor.producer))
    return found


def _acyclic(count: int, after: set[tuple[int, int]]) -> bool:
    left = set(range(count))
    while left:
        ready = {part for part in left if not any(a in left and b == part for a, b in after)}
        if not ready:
            return False
        left -= ready
    return True


def _depths(count: int, after: set[tuple[int, int]]) -> list[int]:
    depth = [1] * count
    for _ in range(count):
        for a, b in after:
            depth[a] = max(depth[a], depth[b] + 1)
    return depth


def _devices(problem: PlacementProblem, count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A kind and a number of devices for each of ``count`` parts, no more than there are."""
    degrees = [1, *(degree.devices for degree in problem.degrees)]
    for kinds in itertools.product(range(len(problem.kinds)), repeat=count):
        for on in itertools.product(degrees, repeat=count):
            if all(sum(r for k, r in zip(kinds, on, strict=True) if k == kind) <= entry.count
                   for kind, entry in enumerate(problem.kinds)):
                yield kinds, on


def _costs(problem: PlacementProblem, parts: Sequence[Sequence[int]], kinds: Sequence[int], on: Sequence[int]
           ) -> list[Fraction] | None:
    """Load by load; ``None`` where a part is on a kind that does not run all of it."""
    degrees = {degree.devices: degree for degree in problem.degrees}
    found = []
    for nodes, kind, r in zip(parts, kinds, on, strict=True):
        load = Fraction(0)
        for node in nodes:
            time = (degrees[r].times[node] if r > 1 else problem.nodes[node].times)[kind]
            if time is None:
                return None
            load += Fraction(time)
            if r > 1:
                load += (Fraction(degrees[r].all_reduce) * Fraction(problem.nodes[node].gradient)
                         / (problem.micro_batches or 1))
        inside = set(nodes)
        for tensor in problem.tensors:
            touched = {tensor.producer, *tensor.consumers}
            if touched & inside and touched - inside:
                load += Fraction(tensor.time) * Fraction(problem.kinds[kind].transfer_factor) / r
        found.append(load)
    return found


def _fits(problem: PlacementProblem, nodes: Sequence[int], kind: int, on: int, depth: int) -> bool:
    limit = problem.kinds[kind].memory
    if limit is None:
        return True
    flying = depth if problem.micro_batches is None else min(depth, problem.micro_batches)
    held = sum(Fraction(problem.nodes[n].resident) + flying * Fraction(problem.nodes[n].per_micro_batch) / on
               for n in nodes)
    return held <= Fraction(limit) * (1 + _ROUNDING)
