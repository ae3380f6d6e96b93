"""What fits by no division at all: an operator too large for every device, or all together for all devices."""

from __future__ import annotations

import math
from functools import partial

from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.placement.groups import Groups, room


class NoPlacement(Infeasible):
    """No placement fits (or none was found in time); the message names an operator and how much memory is missing."""


def refuse_infeasible(groups: Groups) -> None:
    """Raise :class:`NoPlacement` where a group fits no device, or all groups together not all devices."""
    problem, amount = groups.problem, partial(amount_text, groups)
    for group in range(groups.count):
        kinds = [kind for k, kind in enumerate(problem.kinds) if math.isfinite(groups.times[group, k])]
        if not kinds:
            raise NoPlacement(f"{operator_text(groups, group)} must be on one device, but no kind of device runs all "
                              "of these operators; give times on one kind")
        limits = [kind.memory for kind in kinds]
        held = groups.memory([group], 1)
        if all(limit is not None and held > room(limit) for limit in limits):
            limit, name = max((kind.memory or 0.0, kind.name) for kind in kinds)
            raise NoPlacement(f"{operator_text(groups, group)} holds {amount(held)}, a device of kind {name} has "
                              f"{amount(limit)}: {amount(held - limit)} are missing")
    there = [kind for kind in problem.kinds if kind.count]
    if any(kind.memory is None for kind in there):
        return
    have = sum(kind.count * (kind.memory or 0.0) for kind in there)
    held = groups.memory(range(groups.count), 1)
    if held > room(have):
        largest = largest_of(groups, range(groups.count))
        raise NoPlacement(f"the operators hold {amount(held)} together, all devices have {amount(have)}: "
                          f"{amount(held - have)} are missing; the largest is {operator_text(groups, largest)} with "
                          f"{amount(groups.memory([largest], 1))}")


def largest_of(groups: Groups, among: range | tuple[int, ...]) -> int:
    """The group among these with the most memory."""
    return max(among, key=lambda group: groups.memory([group], 1))


def operator_text(groups: Groups, group: int) -> str:
    """The name of the group's operator with the most memory, and the number of others with it."""
    nodes = groups.problem.nodes
    members = sorted(groups.members[group], key=lambda i: -(nodes[i].resident + nodes[i].per_micro_batch))
    others = len(members) - 1
    return f"operator {nodes[members[0]].name!r}" + (
        f" (with {others} more that must share its device)" if others else "")


def amount_text(groups: Groups, memory: float) -> str:
    """``memory`` with the problem's unit."""
    return f"{memory:,.10g} {groups.problem.memory_unit}"
