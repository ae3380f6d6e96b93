"""A plan of one's own, written call by call: transform, place and order, preserve.

::

    plan = Plan(program)
    plan.split("up", "f", 4).split("down", "f", 4).assign("up down", range(4))
    print(plan.preserve())                       # the communication that follows

In which order parts run: data between them, what the plan orders, and the circle where both contradict.

A part waits for every part whose numbers reach it, through all steps of a communication: in a collective everyone waits
for its whole group.

An order of all parts that a search has found, as a rule of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import accumulate, pairwise
from typing import Concatenate, ParamSpec

from weft.models.layouts.conversion import LayoutPrices
from weft.models.layouts.layout import intersection, volume
from weft.models.transform import transformations
from weft.models.transform.choices import (
    OneOf,
    PlanChoice,
    SplitOption,
    Transformation,
    choice_of_devices,
    choice_of_splits,
)
from weft.models.transform.planned import Part, Planned
from weft.models.transform.preserving import Communication, communications
from weft.models.transform.program import PlanError, PlanProgram
from weft.models.transform.tensor_parallel import along
from weft.models.transform.tensor_parallel import tensor_parallel as cut_over
from weft.solver.late import nx

_P = ParamSpec("_P")


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
        position = {part: i for i, part in enumerate(self.order)}
        last: dict[tuple[Part, str], int] = {}
        for entry in self.joined:
            end = max((position[view.part] for view in entry.readers), default=0)
            for view in entry.producers if not entry.next_step else ():
                near = [position[read.part] for read in entry.readers if read.device == view.device
                        and intersection(read.box, view.box) is not None]
                when = max(near, default=position[view.part]) if entry.silent else end
                last |= {(view.part, term): max(last.get((view.part, term), 0), when) for term in entry.terms}
        changes: dict[int, list[int]] = {}
        for part in self.order:
            change = changes.setdefault(self.planned.device(part), [0] * (len(self.order) + 1))
            for name, box in self.planned.outputs(part):
                size = self.planned.program.tensors[name].itemsize * volume(box)
                change[position[part]] += size
                change[last.get((part, name), position[part]) + 1] -= size
        return {device: max(accumulate(change)) for device, change in changes.items()}

    def __str__(self) -> str:
        lines = [str(entry) for entry in self.communications]
        return "\n".join(lines or ["nothing is sent"])


def _method(transformation: Callable[Concatenate[Planned, _P], Planned]
            ) -> Callable[Concatenate[TransformPlan, _P], TransformPlan]:
    """A transformation as a method of a plan, which is changed and given back."""
    @wraps(transformation)
    def called(plan: TransformPlan, /, *arguments: _P.args, **keywords: _P.kwargs) -> TransformPlan:
        return plan.apply(lambda planned: transformation(planned, *arguments, **keywords))

    return called


@dataclass
class TransformPlan:
    """A plan being written. Every call changes it and gives it back; each raises
    :class:`~weft.models.transform.program.PlanError` for what cannot be.

    Operators are named one by one, by patterns as of a shell, or several of both between spaces. Gradients are cut and
    placed as their operators are, updates of parameters as those that read them, unless they are named themselves.
    """

    program: PlanProgram
    planned: Planned = field(init=False)
    #: What was called, so that a search can make the plan anew with what is open decided.
    calls: list[Transformation | PlanChoice] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.planned = Planned(self.program)

    @classmethod
    def of(cls, planned: Planned) -> TransformPlan:
        """A plan to go on with, nothing of it open."""
        plan = cls(planned.program)
        return plan.apply(lambda _: planned)

    def apply(self, transformation: Callable[[Planned], Planned]) -> TransformPlan:
        """A transformation of one's own: a function of what is planned."""
        made = transformation(self.planned)
        if not isinstance(made, Planned):
            raise PlanError(f"a transformation gives what is planned, this one gave {type(made).__name__}")
        self.planned = made
        self.calls.append(transformation)
        return self

    def leave_open(self, choice: PlanChoice) -> TransformPlan:
        """A choice that a search takes (:func:`weft.plans.solve`); until then the plan has its first option."""
        if any(isinstance(call, PlanChoice) and call.name == choice.name for call in self.calls):
            raise PlanError(f"the choice {choice.name!r} is made twice")
        self.planned = choice.first(self.planned)
        self.calls.append(choice)
        return self

    def choose(self, operators: str, options: Sequence[SplitOption]) -> TransformPlan:
        """Leave open how operators are split: each of ``options`` is a split ``(along, parts)``, a list of several, a
        transformation of one's own, or ``None`` for none."""
        self.program.named(operators)
        return self.leave_open(choice_of_splits(operators, options))

    split = _method(transformations.split)
    replicate = _method(transformations.replicate)
    co_shard = _method(transformations.co_shard)
    recompute = _method(transformations.recompute)
    pipeline = _method(transformations.pipeline)
    order = _method(transformations.order)
    tensor_parallel = _method(cut_over)

    def along(self, tensor: str, axis: int = 0) -> dict[str, str]:
        """As :func:`weft.models.transform.tensor_parallel.along`."""
        return along(self.planned, tensor, axis)

    def assign(self, operators: str, devices: int | Sequence[int] | OneOf) -> TransformPlan:
        """As :func:`weft.models.transform.transformations.assign`; :func:`~weft.models.transform.choices.one_of` leaves
        open which devices."""
        if isinstance(devices, OneOf):
            return self.leave_open(choice_of_devices(operators, devices))
        return self.apply(lambda planned: transformations.assign(planned, operators, devices))

    def preserve(self, prices: LayoutPrices | None = None) -> Preserved:
        """Derive the communication, and an order of all parts.

        Raises :class:`~weft.models.transform.program.PlanError` with the circle, where data and orders close one.
        """
        joined = communications(self.planned, prices)
        return Preserved(self.planned, joined, run_order(self.planned, joined))


#: The method as a function of the plan.
tensor_parallel = TransformPlan.tensor_parallel


def run_order(planned: Planned, joined: Sequence[Communication]) -> tuple[Part, ...]:
    """All parts in an order that keeps data and orders: as a search has found it where it has, micro-batch by
    micro-batch where nothing else says more.

    Raises :class:`~weft.models.transform.program.PlanError` with the circle, where there is none.
    """
    graph = waits(planned, joined)
    _require_no_circle(graph)
    position = {operation.name: i for i, operation in enumerate(planned.program.operations)}
    found = {part: i for i, part in enumerate(in_sequence(planned))}
    rank = {part: (found.get(part, len(found)), position[part.operation], part.number) for part in graph.nodes}
    return tuple(nx.lexicographical_topological_sort(graph, key=rank.__getitem__))


def waits(planned: Planned, joined: Sequence[Communication]) -> nx.DiGraph[Part]:
    """Which part waits for which; an edge's ``why`` says the tensor, or that the plan orders it."""
    graph: nx.DiGraph[Part] = nx.DiGraph()
    for operation in planned.program.operations:
        graph.add_nodes_from(planned.parts(operation.name))
    for entry in joined:
        if not entry.next_step:
            for source, target in reached(entry):
                graph.add_edge(source, target, why=f"reads {entry.tensor}")
    for order in planned.orders:
        for first, then in order.pairs(planned):
            if not graph.has_edge(first, then):
                graph.add_edge(first, then, why="ordered")
    return graph


def reached(entry: Communication) -> Iterable[tuple[Part, Part]]:
    """Producing parts and the reading parts that their numbers reach."""
    if entry.conversion is None:
        for view in entry.readers:
            for sent in entry.messages:
                if sent.target == view.device and intersection(sent.box, view.box) is not None:
                    yield sent.source, view.part
        return
    if not entry.conversion.steps:  # in place: no more than what overlaps
        for view in entry.readers:
            for made in entry.producers:
                if made.device == view.device and intersection(made.box, view.box) is not None:
                    yield made.part, view.part
        return
    known: dict[int, set[Part]] = {}
    for made in entry.producers:
        known.setdefault(made.device, set()).add(made.part)
    for step in entry.conversion.steps:
        after: dict[int, set[Part]] = {}
        if step.kind == "send":
            for message in step.messages:
                after.setdefault(message.target, set()).update(known[message.source])
        elif step.kind in ("slice", "term"):
            after = known
        else:
            for group in step.groups:
                together = set().union(*(known[device] for device in group))
                after.update({device: set(together) for device in group})
        known = after
    for view in entry.readers:
        for part in known.get(view.device, ()):
            yield part, view.part


def _require_no_circle(graph: nx.DiGraph[Part]) -> None:
    try:
        edges = nx.find_cycle(graph)
    except nx.NetworkXNoCycle:
        return
    parts = [edge[0] for edge in edges]
    said = " -> ".join(f"{one} -({graph.edges[one, other]['why']})" for one, other in pairwise([*parts, parts[0]]))
    raise PlanError(f"parts wait for each other in a circle: {said} -> {parts[0]}")


@dataclass(frozen=True)
class InSequence:
    """Each device runs its parts in the order in which they stand in ``parts``; where parts of several devices may run
    in any order, they are listed so as well (:func:`weft.models.transform.plan.run_order`)."""

    parts: tuple[Part, ...]

    def pairs(self, planned: Planned) -> Iterable[tuple[Part, Part]]:
        """Neighbours of each device."""
        rows: dict[int, list[Part]] = {}
        for part in self.parts:
            rows.setdefault(planned.device(part), []).append(part)
        for row in rows.values():
            yield from pairwise(row)


def in_sequence(planned: Planned) -> tuple[Part, ...]:
    """The last sequence that a plan was given; none without one."""
    return next((order.parts for order in reversed(planned.orders) if isinstance(order, InSequence)), ())
