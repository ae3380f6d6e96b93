"""In which order parts run: data between them, what the plan orders, and the circle where both contradict.

A part waits for every part whose numbers reach it, through all steps of a communication: in a collective everyone waits
for its whole group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from weft.models.transform.annotation import PlanError
from weft.models.transform.planned import Part, Planned
from weft.models.transform.preserving import Communication, intersection
from weft.models.transform.sequence import in_sequence
from weft.solver.late import nx

__all__ = ["reached", "run_order", "waits"]


def run_order(planned: Planned, joined: Sequence[Communication]) -> tuple[Part, ...]:
    """All parts in an order that keeps data and orders: as a search has found it where it has, micro-batch by
    micro-batch where nothing else says more.

    Raises :class:`~weft.models.transform.annotation.PlanError` with the circle, where there is none.
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
