"""A plan of one's own, written call by call: transform, place and order, preserve.

::

    plan = Plan(program)
    plan.split("up", "f", 4).split("down", "f", 4).assign("up down", range(4))
    print(plan.preserve())                       # the communication that follows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from weft.models.layouts.prices import Prices
from weft.models.transform import planned as transformations
from weft.models.transform.annotation import PlanError, Role
from weft.models.transform.choices import (
    Choice,
    OneOf,
    SplitOption,
    Transformation,
    choice_of_devices,
    choice_of_splits,
)
from weft.models.transform.ordering import run_order
from weft.models.transform.planned import Part, Planned, Which
from weft.models.transform.preserving import Communication, communications
from weft.models.transform.program import Program
from weft.models.transform.tensor_parallel import along
from weft.models.transform.tensor_parallel import tensor_parallel as cut_over

__all__ = ["Plan", "Preserved", "tensor_parallel"]


@dataclass(frozen=True)
class Preserved:
    """A plan put together: its communications, and its parts in an order in which they can run."""

    planned: Planned
    joined: tuple[Communication, ...]
    order: tuple[Part, ...]

    @property
    def communications(self) -> tuple[Communication, ...]:
        """Those in which something is sent."""
        return tuple(entry for entry in self.joined if not entry.silent)

    @property
    def seconds(self) -> float:
        """What they cost one after another."""
        return sum(entry.seconds for entry in self.communications)

    @property
    def bytes(self) -> int:
        """What the busiest device of each sends, added up."""
        return sum(entry.bytes for entry in self.communications)

    def kinds(self, tensor: str) -> tuple[str, ...]:
        """What is done to bring a tensor to its readers, one after another."""
        return tuple(kind for entry in self.communications if entry.tensor == tensor for kind in entry.kinds)

    @cached_property
    def peaks(self) -> dict[int, int]:
        """Bytes of what parts made that each device holds at most at once, kept until its last reader has run."""
        last: dict[tuple[Part, str], int] = {}
        position = {part: i for i, part in enumerate(self.order)}
        made: dict[int, list[tuple[Part, str, int]]] = {}
        program = self.planned.program
        for entry in self.joined:
            end = max((position[view.part] for view in entry.readers), default=0)
            for view in entry.producers:
                for term in entry.terms:
                    if not entry.next_step and program.producer[term] == view.part.operation:
                        near = [position[read.part] for read in entry.readers if read.device == view.device
                                and _meet(read.box, view.box)]
                        when = max(near, default=position[view.part]) if entry.silent else end
                        last[view.part, term] = max(last.get((view.part, term), 0), when)
        for part in self.order:
            operation = program.by_name[part.operation]
            for name, dimensions in zip(operation.outputs, operation.annotation.outputs, strict=True):
                size = program.tensors[name].itemsize
                for low, high in self.planned.box(part, dimensions):
                    size *= high - low
                made.setdefault(self.planned.device(part), []).append((part, name, size))
        found = {}
        for device, tensors in made.items():
            change = [0] * (len(self.order) + 1)
            for part, name, size in tensors:
                change[position[part]] += size
                change[last.get((part, name), position[part]) + 1] -= size
            total = most = 0
            for step in change:
                total += step
                most = max(most, total)
            found[device] = most
        return found

    def __str__(self) -> str:
        lines = [str(entry) for entry in self.communications]
        return "\n".join(lines or ["nothing is sent"])


def _meet(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))


@dataclass
class Plan:
    """A plan being written. Every call changes it and gives it back; each raises
    :class:`~weft.models.transform.annotation.PlanError` for what cannot be.

    Operators are named one by one, by patterns as of a shell, or several of both between spaces. Gradients are cut and
    placed as their operators are, updates of parameters as those that read them, unless they are named themselves.
    """

    program: Program
    planned: Planned = field(init=False)
    #: What was called, so that a search can make the plan anew with what is open decided.
    calls: list[Transformation | Choice] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.planned = Planned(self.program)

    @classmethod
    def of(cls, planned: Planned) -> Plan:
        """A plan to go on with, nothing of it open."""
        plan = cls(planned.program)
        return plan.apply(lambda _: planned)

    def apply(self, transformation: Callable[[Planned], Planned]) -> Plan:
        """A transformation of one's own: a function of what is planned."""
        made = transformation(self.planned)
        if not isinstance(made, Planned):
            raise PlanError(f"a transformation gives what is planned, this one gave {type(made).__name__}")
        self.planned = made
        self.calls.append(transformation)
        return self

    def leave_open(self, choice: Choice) -> Plan:
        """A choice that a search takes (:func:`weft.plans.solve`); until then the plan has its first option."""
        if any(isinstance(call, Choice) and call.name == choice.name for call in self.calls):
            raise PlanError(f"the choice {choice.name!r} is made twice")
        self.planned = choice.first(self.planned)
        self.calls.append(choice)
        return self

    def choose(self, operators: str, options: Sequence[SplitOption]) -> Plan:
        """Leave open how operators are split: each of ``options`` is a split ``(along, parts)``, a list of several, a
        transformation of one's own, or ``None`` for none."""
        self.program.named(operators)
        return self.leave_open(choice_of_splits(operators, options))

    def split(self, operators: str, along: str, parts: int, *, role: Role | None = None, in_turn: bool = False) -> Plan:
        """As :func:`weft.models.transform.planned.split`."""
        return self.apply(lambda planned: transformations.split(planned, operators, along, parts, role=role,
                                                                in_turn=in_turn))

    def replicate(self, operators: str, copies: int) -> Plan:
        """As :func:`weft.models.transform.planned.replicate`."""
        return self.apply(lambda planned: transformations.replicate(planned, operators, copies))

    def co_shard(self, operators: str, along: str | Mapping[str, str], parts: int, *,
                 recomputed: bool = True) -> Plan:
        """As :func:`weft.models.transform.planned.co_shard`."""
        return self.apply(lambda planned: transformations.co_shard(planned, operators, along, parts,
                                                                   recomputed=recomputed))

    def recompute(self, operators: str) -> Plan:
        """As :func:`weft.models.transform.planned.recompute`."""
        return self.apply(lambda planned: transformations.recompute(planned, operators))

    def pipeline(self, stages: Sequence[str], devices: Sequence[int | Sequence[int]],
                 along: str | Mapping[str, str], micro_batches: int, *,
                 schedule: Literal["1f1b", "gpipe", "open"] = "1f1b") -> Plan:
        """As :func:`weft.models.transform.planned.pipeline`."""
        return self.apply(lambda planned: transformations.pipeline(planned, stages, devices, along, micro_batches,
                                                                   schedule=schedule))

    def tensor_parallel(self, devices: Sequence[int], operators: str = "*", *, prices: Prices | None = None) -> Plan:
        """Cut operators over devices as Megatron does, or better: the cheapest conversions decide.

        As :func:`weft.models.transform.tensor_parallel.tensor_parallel`; the plan is changed and given back. Raises
        :class:`PlanError` for devices that are named twice, and for operators that are cut over devices already.
        """
        return self.apply(lambda planned: cut_over(planned, devices, operators, prices=prices))

    def along(self, tensor: str, axis: int = 0) -> dict[str, str]:
        """As :func:`weft.models.transform.tensor_parallel.along`."""
        return along(self.planned, tensor, axis)

    def assign(self, operators: str, devices: int | Sequence[int] | OneOf) -> Plan:
        """As :func:`weft.models.transform.planned.assign`; :func:`~weft.models.transform.choices.one_of` leaves open
        which devices."""
        if isinstance(devices, OneOf):
            return self.leave_open(choice_of_devices(operators, devices))
        return self.apply(lambda planned: transformations.assign(planned, operators, devices))

    def order(self, first: Which, then: Which) -> Plan:
        """As :func:`weft.models.transform.planned.order`."""
        return self.apply(lambda planned: transformations.order(planned, first, then))

    def preserve(self, prices: Prices | None = None) -> Preserved:
        """Derive the communication, and an order of all parts.

        Raises :class:`~weft.models.transform.annotation.PlanError` with the circle, where data and orders close one.
        """
        joined = communications(self.planned, prices)
        return Preserved(self.planned, joined, run_order(self.planned, joined))


#: The method as a function of the plan.
tensor_parallel = Plan.tensor_parallel
