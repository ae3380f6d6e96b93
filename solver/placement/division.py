"""Groups divided into stages: what every construction gives, and the loads that follow from the groups' costs.

The judge (:mod:`weft.solver.placement.judge`) counts the same from operators and tensors alone; this is for searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.solver.placement.groups import Groups
from weft.solver.placement.placement import Stage

__all__ = ["Division", "Parts", "divided", "heaviest", "largest_load", "nodes_of", "parts_of"]

#: Stages as (kind of device, nodes), in order.
Parts: TypeAlias = Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class Division:
    """``value``: the largest load. ``stages``: (kind, groups) in order, none empty. ``devices``: on how many
    devices each is (empty: one each)."""

    value: float
    stages: tuple[tuple[int, tuple[int, ...]], ...]
    devices: tuple[int, ...] = ()


def largest_load(groups: Groups, stages: Sequence[tuple[int, tuple[int, ...]]], devices: Sequence[int] = ()) -> float:
    """The largest load of these stages (kind, groups), each on so many ``devices`` (default: one each)."""
    return max(_loads(groups, stages, devices))


def heaviest(groups: Groups, division: Division) -> int:
    """The index of the stage with the largest load."""
    loads = _loads(groups, division.stages, division.devices)
    return loads.index(max(loads))


def nodes_of(groups: Groups, division: Division) -> list[tuple[int, tuple[int, ...]]]:
    """The stages of ``division`` as (kind, nodes)."""
    return [(kind, tuple(node for group in inside for node in groups.members[group]))
            for kind, inside in division.stages]


def parts_of(stages: Sequence[Stage]) -> list[tuple[int, tuple[int, ...]]]:
    """Judged stages as (kind, nodes)."""
    return [(stage.kind, stage.nodes) for stage in stages]


def divided(groups: Groups, parts: Parts) -> Division | None:
    """``parts``, which hold all nodes, as stages of ``groups``; ``None`` if a group is in two of them."""
    stage_of = {node: index for index, (_, nodes) in enumerate(parts) for node in nodes}
    inside: list[list[int]] = [[] for _ in parts]
    for group, members in enumerate(groups.members):
        found = {stage_of[node] for node in members}
        if len(found) > 1:
            return None
        inside[found.pop()].append(group)
    stages = tuple((kind, tuple(held)) for (kind, _), held in zip(parts, inside, strict=True) if held)
    return Division(largest_load(groups, stages), stages)


def _loads(groups: Groups, stages: Sequence[tuple[int, tuple[int, ...]]], devices: Sequence[int]) -> list[float]:
    on = list(devices) or [1] * len(stages)
    times = dict(groups.degrees)
    stage_of = {group: index for index, (_, inside) in enumerate(stages) for group in inside}
    loads = [float(times[r][list(inside), kind].sum()) for (kind, inside), r in zip(stages, on, strict=True)]
    for net in groups.nets:
        touched = {stage_of[group] for group in net.groups}
        if len(touched) > 1:
            for stage in touched:
                loads[stage] += net.cost * groups.problem.kinds[stages[stage][0]].transfer_factor / on[stage]
    return loads
