"""A graph of groups as a set of paths, and which of these are interchangeable.

Each group of a *path* but its first and last has one neighbour on either side. Paths that cost, hold and send the same
between the same neighbours are interchangeable, a *family*: exchanging two of them leaves the graph as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from weft.solver.placement.groups import Groups, neighbours, waits


def in_paths(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[list[int]]:
    """The paths of a graph of which is known what is directly ``before`` and ``after`` each; what comes before has a
    smaller number."""
    paths: list[list[int]] = []
    on: dict[int, int] = {}
    for number, sources in enumerate(before):
        if len(sources) == 1 and len(after[sources[0]]) == 1:
            on[number] = on[sources[0]]
            paths[on[number]].append(number)
        else:
            on[number] = len(paths)
            paths.append([number])
    return paths


@dataclass(frozen=True)
class Paths:
    """``paths``: the groups of each, from its start; a path stands after all that follow it, interchangeable ones side
    by side. ``families``: places of interchangeable paths; ``followers``: per path those that directly follow it."""

    paths: tuple[tuple[int, ...], ...]
    families: tuple[range, ...]
    followers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, groups: Groups, *, twins: bool = True) -> Self:
        """The paths of a graph. Without ``twins`` every path is a family of its own."""
        before, after = neighbours(groups.count, waits(groups))
        paths = in_paths(before, after)
        on = {group: index for index, path in enumerate(paths) for group in path}
        families: dict[object, list[int]] = {}
        for index, path in enumerate(paths):
            key = (tuple(before[path[0]]), tuple(after[path[-1]]), *_costs(groups, path))
            families.setdefault(key if twins else index, []).append(index)
        # From the end: a path after all that follow it. Interchangeable ones side by side.
        waiting = sorted(families.values(), key=lambda family: -max(paths[index][-1] for index in family))
        ranked: list[list[int]] = []
        done: set[int] = set()
        while waiting:
            family = next(f for f in waiting
                          if all(on[g] in done for index in f for g in after[paths[index][-1]]))
            waiting.remove(family)
            ranked.append(family)
            done.update(family)
        order = [index for family in ranked for index in family]
        new = {index: i for i, index in enumerate(order)}
        return cls(tuple(tuple(paths[index]) for index in order),
                   tuple(range(new[family[0]], new[family[0]] + len(family)) for family in ranked),
                   tuple(tuple(new[on[g]] for g in after[paths[index][-1]]) for index in order))

    @property
    def family(self) -> tuple[int, ...]:
        """Per path the number of its family."""
        return tuple(number for number, family in enumerate(self.families) for _ in family)

    @property
    def has_twin(self) -> tuple[bool, ...]:
        """Per path whether the path before it is of its family."""
        return tuple(family.start < i for family in self.families for i in family)


def _costs(groups: Groups, path: Sequence[int]) -> tuple[object, object]:
    """The path's groups' tensors, costs and memory, without their names."""
    place = {group: -1 - i for i, group in enumerate(path)}
    nets = sorted((tuple(sorted(place.get(g, g) for g in groups.nets[i].groups)), groups.nets[i].cost)
                  for i in {i for group in path for i in groups.nets_of[group]})
    costs = tuple((*(tuple(times[g].tolist()) for _, times in groups.degrees), groups.resident[g],
                   groups.per_micro_batch[g]) for g in path)
    return tuple(nets), costs
