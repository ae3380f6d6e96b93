"""A plan's parts and communications as blocks: work that runs on one set of devices without waits in between.

A *row* is all parts of an operator in one turn; it occupies the devices of all of them. Rows of one phase, turn and set
of devices connected by data in place form one block. A row's *level* is one more than that of its predecessors, unless
they are in its own block: so waits between blocks are acyclic. Gradients without dependent gradients (those of weights)
are separate from those that others wait for, if ``split_backward`` requests it, and come after them; updates of one set
of devices are grouped, as are communications between the same blocks.

Interchangeable micro-batches: parts in turn that are equal in all relevant properties.

If swapping two neighbouring micro-batches changes nothing, some best order runs each block's micro-batches in sequence:
in any schedule, renumber the micro-batches at each block by their start. The k-th start of a block is then not before
the k-th end of its predecessors, so waits hold; devices and memory see the same blocks at the same times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from weft.models.transform.plan import Preserved, reached
from weft.models.transform.planned import Part
from weft.models.transform.program import PlanError
from weft.solver.late import nx

#: A row (an operator and a turn), or the number of a communication.
_Unit: TypeAlias = tuple[str, tuple[int, ...]] | int
#: Rows of one key may be one block: devices, phase, turn.
_Key: TypeAlias = tuple[tuple[int, ...], str, tuple[int, ...]]


@dataclass(frozen=True)
class Grouped:
    """A block of a plan. ``parts``: in the plan's execution order; ``joined``: its communications, by their positions
    in :attr:`~weft.models.transform.plan.Preserved.joined`; one of the two is empty. ``phase`` is that of its
    operators, ``weights`` for gradients without dependent gradients, or the purpose of a communication:
    ``communication``, ``next step``. ``turn``: its position among parts in turn. ``after``: the blocks that it waits
    for, by number."""

    name: str
    phase: str
    devices: tuple[int, ...]
    turn: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    joined: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def grouped(done: Preserved, *, split_backward: bool = True, grain: int | None = None) -> tuple[Grouped, ...]:
    """The blocks of a plan in topological order.

    ``grain``: the maximum number of dependent operators in a block (``None``: any number), so that communications of
    the first may overlap the others. Raises :class:`~weft.models.transform.program.PlanError` if devices that compute
    an operator together wait for each other in different orders.
    """
    return _Grouping(done, split_backward, grain).blocks()


class _Grouping:
    def __init__(self, done: Preserved, split_backward: bool, grain: int | None) -> None:
        self.done, self.planned, self.program = done, done.planned, done.planned.program
        self.split, self.grain = split_backward, grain
        self.position = {part: i for i, part in enumerate(done.order)}

    @cached_property
    def rows(self) -> Mapping[_Unit, tuple[Part, ...]]:
        """The parts of each row, in order."""
        found: dict[_Unit, list[Part]] = {}
        for part in self.done.order:
            found.setdefault(self.row(part), []).append(part)
        return {row: tuple(parts) for row, parts in found.items()}

    def row(self, part: Part) -> _Unit:
        return part.operation, self.planned.turn(part)

    def key(self, row: _Unit) -> _Key:
        assert not isinstance(row, int)
        devices = tuple(sorted({self.planned.device(part) for part in self.rows[row]}))
        phase = self.program.by_name[row[0]].phase
        if phase == "backward" and self.split and self.is_last(row[0]):
            return devices, "weights", row[1]
        # Recomputed operators belong to their backward.
        return devices, "backward" if phase == "recomputed" else phase, row[1]

    def is_last(self, name: str) -> bool:
        """Whether only updates read an operator's outputs."""
        made = set(self.program.by_name[name].outputs)
        names = made | {total for total, terms in self.program.sums.items() if made & set(terms)}
        readers = {reader for one in names for reader in self.program.readers.get(one, ())}
        return all(self.program.by_name[reader].phase == "update" for reader in readers)

    # -- waits -----------------------------------------------------------------------------------------

    def graph(self) -> nx.DiGraph[_Unit]:
        """Rows and communications; ``near`` of an edge: whether data is in place at both ends."""
        graph: nx.DiGraph[_Unit] = nx.DiGraph()
        graph.add_nodes_from(self.rows)

        def wait(first: _Unit, then: _Unit, near: bool) -> None:
            if first != then:
                known = graph.edges[first, then]["near"] if graph.has_edge(first, then) else True
                graph.add_edge(first, then, near=near and known)

        for i, entry in enumerate(self.done.joined):
            if entry.silent:
                if not entry.next_step:
                    for source, target in reached(entry):
                        wait(self.row(source), self.row(target), True)
                continue
            for made in entry.producers:
                wait(self.row(made.part), i, False)
            if not entry.next_step:
                for view in entry.readers:
                    wait(i, self.row(view.part), False)
        for order in self.planned.orders:
            for first, then in order.pairs(self.planned):
                if self.row(first) == self.row(then) and self.planned.device(first) != self.planned.device(then):
                    raise PlanError(f"{first} is ordered before {then}: parts of an operator on several devices start "
                                    "together where an order is searched; leave that order out, or put them on one "
                                    "device")
                wait(self.row(first), self.row(then), False)
        return graph

    def levels(self) -> Mapping[_Unit, int]:
        """Below those of all its successors, except ones that may be in its own block."""
        graph = self.graph()
        keys = {row: self.key(row) for row in self.rows}
        if self.grain is None:
            self.weights_last(graph, keys)
        level: dict[_Unit, tuple[int, int]] = {}
        try:
            order = list(nx.topological_sort(graph))
        except nx.NetworkXUnfeasible:
            raise PlanError("devices that compute operators together run them in different orders, so that they are no "
                            "blocks of all of them") from None
        for unit in order:
            found = 0, 0
            for before in graph.predecessors(unit):
                same = graph.edges[before, unit]["near"] and keys.get(before) == keys.get(unit)
                at, depth = level[before]
                deeper = depth + 1
                if not same or (self.grain is not None and deeper >= self.grain):
                    at, deeper = at + 1, 0
                found = max(found, (at, deeper))
            level[unit] = found
        self.waits, self.keys = graph, keys
        return {unit: at for unit, (at, _) in level.items()}

    def weights_last(self, graph: nx.DiGraph[_Unit], keys: Mapping[_Unit, _Key]) -> None:
        """Weight gradients come after all gradients of their turn that others wait for."""
        behind: dict[_Key, list[_Unit]] = {}
        for row, key in keys.items():
            behind.setdefault(key, []).append(row)
        added = [(before, row) for (devices, phase, turn), rows in behind.items() if phase == "weights"
                 for before in behind.get((devices, "backward", turn), ()) for row in rows
                 if not graph.has_edge(before, row)]
        graph.add_edges_from(added, near=False)
        if not nx.is_directed_acyclic_graph(graph):
            graph.remove_edges_from(added)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def blocks(self) -> tuple[Grouped, ...]:
        level = self.levels()
        of: dict[_Unit, object] = {}
        for (key, at), rows in self.alike(level).items():
            if key[1] in ("weights", "update"):
                of |= dict.fromkeys(rows, (key, at))
                continue
            near: nx.Graph[_Unit] = nx.Graph()
            near.add_nodes_from(rows)
            members = set(rows)
            near.add_edges_from((one, other) for one in rows for other in self.waits.successors(one)
                                if other in members and self.waits.edges[one, other]["near"])
            for i, some in enumerate(nx.connected_components(near)):
                of |= dict.fromkeys(some, (key, at, i))
        for i in (unit for unit in level if isinstance(unit, int)):
            entry = self.done.joined[i]
            of[i] = (entry.kinds, entry.devices, entry.next_step, level[i],
                     frozenset(of[one] for one in self.waits.predecessors(i)),
                     frozenset(of[one] for one in self.waits.successors(i)))
        return self.named(of)

    def alike(self, level: Mapping[_Unit, int]) -> Mapping[tuple[_Key, int], list[_Unit]]:
        found: dict[tuple[_Key, int], list[_Unit]] = {}
        for row, key in self.keys.items():
            found.setdefault((key, level[row]), []).append(row)
        return found

    def named(self, of: Mapping[_Unit, object]) -> tuple[Grouped, ...]:
        members: dict[object, list[_Unit]] = {}
        for unit, block in of.items():
            members.setdefault(block, []).append(unit)
        graph: nx.DiGraph[object] = nx.DiGraph()
        graph.add_nodes_from(members)
        graph.add_edges_from((of[one], of[other]) for one, other in self.waits.edges if of[one] != of[other])
        first = {block: min(map(self.when, units)) for block, units in members.items()}
        order = list(nx.lexicographical_topological_sort(graph, key=first.__getitem__))
        number = {block: i for i, block in enumerate(order)}
        used: dict[str, int] = {}
        found = []
        for block in order:
            made = self.block(members[block], tuple(sorted(number[one] for one in graph.predecessors(block))))
            used[made.name] = used.get(made.name, 0) + 1
            if used[made.name] > 1:
                made = replace(made, name=f"{made.name} ({used[made.name]})")
            found.append(made)
        return tuple(found)

    def when(self, unit: _Unit) -> tuple[int, int]:
        """The position of a unit in the plan's own order: a communication at the last part that it needs."""
        if isinstance(unit, int):
            return max(self.position[view.part] for view in self.done.joined[unit].producers), 1
        return self.position[self.rows[unit][0]], 0

    def block(self, units: Sequence[_Unit], after: tuple[int, ...]) -> Grouped:
        joined = tuple(sorted(unit for unit in units if isinstance(unit, int)))
        if joined:
            entries = [self.done.joined[i] for i in joined]
            turns = {view.turn for entry in entries for view in entry.readers}
            turn = next(iter(turns)) if len(turns) == 1 else ()
            name = f"{' + '.join(entries[0].kinds)} {_some(entry.tensor for entry in entries)}"
            phase = "next step" if entries[0].next_step else "communication"
            return Grouped(_turned(name, turn), phase, entries[0].devices, turn, (), joined, after)
        devices, phase, turn = self.keys[units[0]]
        parts = tuple(sorted((part for row in units for part in self.rows[row]), key=self.position.__getitem__))
        name = _some(part.operation for part in parts)
        return Grouped(_turned(name if phase != "weights" else f"weights: {name}", turn), phase, devices, turn, parts,
                       (), after)


def _turned(name: str, turn: Sequence[int]) -> str:
    return f"{name}#{'.'.join(map(str, turn))}" if turn else name


def _some(names: Iterable[str]) -> str:
    """The first, and the last if there are several."""
    every = list(dict.fromkeys(names))
    return every[0] if len(every) == 1 else f"{every[0]} .. {every[-1]}"


_Look: TypeAlias = tuple[object, ...]


def twins(done: Preserved, blocks: Sequence[Grouped], seconds: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs of blocks, one micro-batch's and the next one's; none if micro-batches differ.

    A micro-batch is the first number of a block's turn. Blocks are alike if they have equal operators, devices, times
    and bytes and wait for blocks that are alike or identical.
    """
    turns = sorted({block.turn[0] for block in blocks if block.turn})
    by_turn: dict[int, dict[_Look, int]] = {turn: {} for turn in turns}
    for i, block in enumerate(blocks):
        if block.turn:
            look = _look(done, block, seconds[i])
            if look in by_turn[block.turn[0]]:
                return []  # two alike blocks in one micro-batch: ambiguous
            by_turn[block.turn[0]][look] = i
    found: list[tuple[int, int]] = []
    for one, other in pairwise(turns):
        if by_turn[one].keys() != by_turn[other].keys() or not _swaps(blocks, by_turn[one], by_turn[other]):
            return []
        found += [(i, by_turn[other][look]) for look, i in by_turn[one].items()]
    return found


def folded(blocks: Sequence[Grouped], pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...] | None:
    """The blocks of each micro-batch of a plan whose blocks each belong to one, in the order of their counterparts in
    the first, by the pairs of :func:`twins`; ``None`` if blocks belong to the whole step, or one micro-batch's wait for
    another's."""
    if not pairs or not all(block.turn for block in blocks):
        return None
    following = dict(pairs)
    first = min(block.turn[0] for block in blocks)
    rows = [tuple(i for i, block in enumerate(blocks) if block.turn[0] == first)]
    while all(i in following for i in rows[-1]):
        rows.append(tuple(following[i] for i in rows[-1]))
    turn_of = {i: m for m, row in enumerate(rows) for i in row}
    if len(turn_of) < len(blocks) or any(turn_of[before] != turn_of[i] for i, block in enumerate(blocks)
                                         for before in block.after):
        return None
    return tuple(rows)


def _look(done: Preserved, block: Grouped, seconds: float) -> _Look:
    return (block.phase, block.devices, block.turn[1:], round(seconds, 12),
            tuple((part.operation, *done.planned.sizes(part).values()) for part in block.parts),
            tuple(sorted((done.joined[i].tensor, done.joined[i].kinds, done.joined[i].bytes) for i in block.joined)))


def _swaps(blocks: Sequence[Grouped], one: dict[_Look, int], other: dict[_Look, int]) -> bool:
    """Whether exchanging the two micro-batches preserves all waits."""
    swapped = {i: other[look] for look, i in one.items()} | {other[look]: i for look, i in one.items()}
    waits = {(before, i) for i, block in enumerate(blocks) for before in block.after}
    touched = {(before, i) for before, i in waits if before in swapped or i in swapped}
    return {(swapped.get(before, before), swapped.get(i, i)) for before, i in touched} == touched
