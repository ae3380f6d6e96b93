"""The transformations: functions from one :class:`~weft.models.transform.planned.Planned` to another.

:func:`split`, :func:`replicate`, :func:`co_shard`, :func:`recompute`, :func:`pipeline`, :func:`assign`, :func:`order`,
and the rules of order that they make. A user's own is one more such function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from weft.models.transform.backward import recomputing
from weft.models.transform.planned import Cut, Part, Planned, Which
from weft.models.transform.program import PlanError, PlanOperation, Role


@dataclass(frozen=True)
class _Given:
    first: Which
    then: Which

    def pairs(self, planned: Planned) -> Iterable[tuple[Part, Part]]:
        return itertools.product(_parts(planned, self.first), _parts(planned, self.then))


@dataclass(frozen=True)
class _InTurns:
    """One turn of these operators behind the other, in each phase; recomputed forwards come with the backward."""

    names: frozenset[str]

    def pairs(self, planned: Planned) -> Iterable[tuple[Part, Part]]:
        phases: dict[bool, dict[int, list[Part]]] = {True: {}, False: {}}
        for operation in planned.program.operations:
            if operation.phase != "update" and (operation.name in self.names or operation.follows in self.names):
                for part in planned.parts(operation.name):
                    turn = planned.turn(part)
                    if turn:
                        phases[operation.phase == "forward"].setdefault(turn[-1], []).append(part)
        for turns in phases.values():
            for i in sorted(turns):
                yield from _between(planned, turns[i], turns.get(i + 1, ()))


@dataclass(frozen=True)
class _Staged:
    """The order of each stage's forwards and backwards."""

    members: tuple[tuple[str, ...], ...]
    micro_batches: int
    schedule: Literal["1f1b", "gpipe"]

    def pairs(self, planned: Planned) -> Iterable[tuple[Part, Part]]:
        for stage, names in enumerate(self.members):
            ahead = self.micro_batches
            if self.schedule == "1f1b":
                ahead = min(len(self.members) - stage, ahead)
            items = [("forward", i) for i in range(ahead)]
            for i in range(self.micro_batches):
                items.append(("backward", i))
                if ahead + i < self.micro_batches:
                    items.append(("forward", ahead + i))
            parts = [some for phase, i in items if (some := _micro_batch(planned, names, phase, i))]
            for one, other in itertools.pairwise(parts):
                yield from _between(planned, one, other)


# -- transformations -------------------------------------------------------------------------------------------------


def split(planned: Planned, operators: str, along: str, parts: int, *, role: Role | None = None,
          in_turn: bool = False) -> Planned:
    """Cut operators into so many equal parts along a name of their annotations; parts that there are are cut further.

    An operator that follows another, such as an update, no longer does so when it is cut itself.

    ``role``: what the name must be, spatial or reduction; ``None`` takes what it is. ``in_turn``: parts run one after
    another on the same device. Raises :class:`PlanError` for a name that is not there, is frozen or of another role, or
    that so many parts do not divide.
    """
    cuts = dict(planned.cuts)
    for name in planned.program.named(operators):
        operation = planned.program.by_name[name]
        _require_cut(planned, operation, along, parts, role)
        cuts[name] = (*cuts.get(name, ()), Cut(along, parts, in_turn))
    return replace(planned, cuts=cuts)


def replicate(planned: Planned, operators: str, copies: int) -> Planned:
    """Have so many devices compute the same. Raises :class:`PlanError` for less than one."""
    if type(copies) is not int or copies < 1:
        raise PlanError(f"{operators}: {copies} copies, there must be a whole number of at least 1")
    cuts = dict(planned.cuts)
    for name in planned.program.named(operators):
        cuts[name] = (*cuts.get(name, ()), Cut(None, copies))
    return replace(planned, cuts=cuts)


def recompute(planned: Planned, operators: str) -> Planned:
    """Keep nothing of what operators make for the backward: they run again before it, behind all forwards."""
    program = recomputing(planned.program, planned.program.named(operators))
    return replace(planned, program=program)


def co_shard(planned: Planned, operators: str, along: str | Mapping[str, str], parts: int, *,
             recomputed: bool = True) -> Planned:
    """Run operators in so many parts, one after the other on the same device, forward and backward.

    What has the name ``along``, or the one that it gives by operator, is cut; of the others nothing changes. A
    reduction's parts are added up. ``recomputed``: each part's forward runs again
    just before its backward, so that activations of one part exist at a time.
    """
    names = planned.program.named(operators)
    own = {name: along if isinstance(along, str) else along.get(name, "") for name in names}
    cut = [name for name in names if own[name] in planned.program.by_name[name].annotation.names]
    if not cut:
        what = repr(along) if isinstance(along, str) else "a name that is given"
        raise PlanError(f"{operators}: no operator has {what}")
    if recomputed:
        planned = recompute(planned, " ".join(names))
    for name in cut:
        planned = split(planned, name, own[name], parts, in_turn=True)
    return replace(planned, orders=(*planned.orders, _InTurns(frozenset(cut))))


def assign(planned: Planned, operators: str, devices: int | Sequence[int]) -> Planned:
    """Put operators on devices: one for each part, but for those in turn. An operator in one piece that gets several
    devices is computed by all of them. Raises :class:`PlanError` where the numbers do not fit."""
    given = tuple(devices) if isinstance(devices, Iterable) else (devices,)
    if not all(type(device) is int for device in given):
        raise PlanError(f"{operators}: the devices are {devices!r}, they must be whole numbers")
    if min(given, default=0) < 0:
        raise PlanError(f"{operators}: the device {min(given)} is negative")
    if not given or len(set(given)) != len(given):
        raise PlanError(f"{operators}: the devices {list(given)} must be different; parts in turn are co_shard's")
    cuts, found = dict(planned.cuts), dict(planned.devices)
    for name in planned.program.named(operators):
        if planned.program.by_name[name].follows is not None and name not in cuts and name != operators:
            continue  # it goes where what it follows goes
        count = math.prod(cut.parts for cut in planned.cuts_of(name) if not cut.in_turn)
        if count == 1 < len(given):
            cuts[name] = (*planned.cuts_of(name), Cut(None, len(given)))
        elif count != len(given):
            raise PlanError(f"operator {name!r} has {count} parts beside each other, {len(given)} devices are given")
        found[name] = given
    return replace(planned, cuts=cuts, devices=found)


def order(planned: Planned, first: Which, then: Which) -> Planned:
    """Have ``then`` begin behind the end of ``first``: parts, or operators for all their parts.

    Whether that closes a circle is seen when plans are put together (:mod:`weft.models.transform.plan`). Raises
    :class:`PlanError` for what is not there.
    """
    for which in (first, then):
        _parts(planned, which)
    return replace(planned, orders=(*planned.orders, _Given(first, then)))


def pipeline(planned: Planned, stages: Sequence[str], devices: Sequence[int | Sequence[int]],
             along: str | Mapping[str, str], micro_batches: int, *,
             schedule: Literal["1f1b", "gpipe", "open"] = "1f1b") -> Planned:
    """Stages on devices of their own, with micro-batches in turn: cut along the name ``along`` of each operator, or the
    one that it gives by operator.

    Operators of a stage that do not have the name are not cut. ``schedule`` orders forwards and backwards of each
    stage; ``open`` leaves that to a search. Raises :class:`PlanError` where stages and devices do not fit, or the parts
    do not divide.
    """
    if len(stages) != len(devices):
        raise PlanError(f"there are {len(stages)} stages, but devices for {len(devices)}")
    if schedule not in ("1f1b", "gpipe", "open"):
        raise PlanError(f"schedule is {schedule!r}, it must be 1f1b, gpipe or open")
    if type(micro_batches) is not int or micro_batches < 1:
        raise PlanError(f"there are {micro_batches} micro-batches, it must be a whole number of at least 1")
    members = [planned.program.named(stage) for stage in stages]
    first: dict[str, int] = {}
    for stage, names in enumerate(members):
        for name in names:
            if first.setdefault(name, stage) != stage:
                raise PlanError(f"operator {name!r} is in stage {first[name]} and in stage {stage}; name it in one")
    for names, where in zip(members, devices, strict=True):
        for name in names:
            own = along if isinstance(along, str) else along.get(name)
            if own in planned.program.by_name[name].annotation.names and name not in planned.cuts:
                planned = split(planned, name, own or "", micro_batches, in_turn=True)
            if name not in planned.devices:
                planned = assign(planned, name, where)
    every = [planned.cuts_of(name) for names in members for name in names]
    if micro_batches > 1 and not any(cut.in_turn for cuts in every for cut in cuts):
        raise PlanError(f"no operator of the stages has {along!r}, so that there are no micro-batches; give the name "
                        "of the batch in their annotations")
    if schedule == "open":
        return planned
    return replace(planned, orders=(*planned.orders, _Staged(tuple(members), micro_batches, schedule)))


# -- within ----------------------------------------------------------------------------------------------------------


def _require_cut(planned: Planned, operation: PlanOperation, along: str, parts: int, role: Role | None) -> None:
    here = f"operator {operation.name!r} ({operation.annotation})"
    if along not in operation.annotation.names:
        raise PlanError(f"{here} has no {along!r}; it has {', '.join(operation.annotation.names) or 'no names'}")
    own = operation.annotation.role(along)
    if own == "frozen":
        raise PlanError(f"{here}: {along!r} is frozen, it cannot be cut; replicate the operator instead")
    if role is not None and role != own:
        what = "a reduction, whose parts give terms of a sum" if own == "reduction" else "spatial"
        raise PlanError(f"{here}: {along!r} is {what}; it cannot be split as {role}")
    if type(parts) is not int or parts < 1:
        raise PlanError(f"{here}: {parts} parts of {along!r}, there must be a whole number of at least 1")
    own_cuts = replace(planned, cuts={**planned.cuts, operation.name: planned.cuts.get(operation.name, ())})
    low, high = own_cuts.spans(Part(operation.name, 0))[along]
    if (high - low) % parts:
        raise PlanError(f"{here}: {along!r} has {high - low} elements in each part, which {parts} parts do not divide")
    if before := operation.ahead_of(along):
        raise PlanError(f"{here}: {along!r} stands behind {before[0]!r} in one dimension, so that its parts are not in "
                        f"one piece; cut {before[0]!r}")


def _parts(planned: Planned, which: Which) -> tuple[Part, ...]:
    if isinstance(which, str):
        return tuple(part for name in planned.program.named(which, followers=True) for part in planned.parts(name))
    if not isinstance(which, tuple) or len(which) != 2:
        raise PlanError(f"{which!r} is no part: write an operator's name, or a name and the number of a part")
    part = Part(*which)
    if part.operation not in planned.program.by_name or part not in planned.parts(part.operation):
        raise PlanError(f"there is no part {part}")
    return (part,)


def _micro_batch(planned: Planned, names: Iterable[str], phase: str, i: int) -> list[Part]:
    """The parts of stage operators that belong to one micro-batch, forward or backward."""
    wanted = set(names)
    found = []
    for operation in planned.program.operations:
        is_forward = operation.phase == "forward"
        if operation.phase == "update" or is_forward != (phase == "forward"):
            continue
        if (operation.name if is_forward else operation.follows) in wanted:
            cuts = planned.cuts_of(operation.name)
            first = next((n for n, cut in enumerate(cuts) if cut.in_turn), None)
            if first is not None:
                found += [part for part in planned.parts(operation.name) if planned.places(part)[first] == i]
    return found


def _between(planned: Planned, ahead: Iterable[Part], behind: Sequence[Part]) -> Iterable[tuple[Part, Part]]:
    """Pairs of parts of one device and, but for the last, of one turn."""
    for one, other in itertools.product(ahead, behind):
        if planned.turn(one)[:-1] == planned.turn(other)[:-1] and planned.device(one) == planned.device(other):
            yield one, other
