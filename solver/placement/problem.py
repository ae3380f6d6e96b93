"""The placement problem: a graph of operators with costs for each kind of device, and the devices.

Independent of any file format and of how it is solved. Every class checks itself on construction and raises
:class:`PlacementError`, one sentence that names the entry, what was found and what is allowed. All are immutable.

**The meaning of a placement.** The operators are divided into *stages* in a row, each on a device of its own, of one of
the kinds. ``order`` lists which operators bind each other: the first of a pair is in the same stage as the second or in
an earlier one. So a stage is convex in the forward graph and the stages form a DAG. Operators of one colocation class
share a stage; a backward operator normally rides on its forward twin this way, and what backward operators pass to
each other binds nothing, for a pipeline runs its stages back in the opposite order. Only where a colocation class has
no forward operator are its backward edges mirrored, so that it too has a place in the row (as in Tarnawski et al.,
"Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020).

**Load** of a stage on a device of kind k: the times of its operators on k, plus ``k.transfer_factor`` times the time of
every tensor that crosses its border. A tensor crosses a stage's border once, in or out, however many consumers
it has there: it *touches* a stage if some but not all of producer and consumers are in it.

**Memory** of a stage: its operators' ``resident`` plus, for each micro-batch in flight, their ``per_micro_batch``. A
stage that is d-th from the end holds d micro-batches at once (1F1B), never more than ``micro_batches``.

**Replication.** Where the problem has ``degrees``, a stage may have several devices of its kind (data parallelism).
Each of r devices holds all that is ``resident`` and takes an equal part of every micro-batch: its operators take the
time of that part (given for each degree, since small parts reach less of a device's rate), tensors cost 1/r, and 1/r
of ``per_micro_batch`` is held for each micro-batch in flight. Once a step, after the last backward, the devices add up
their gradients, at ``all_reduce`` for a unit of ``gradient`` (a ring of r devices sends 2 (r - 1)/r of it over its
slowest link); a load counts the share of one micro-batch of that. How many micro-batches are in flight follows from the
stages, however many devices they have, since every stage works at one micro-batch at a time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from weft.solver.late import nx
from weft.solver.values import LARGEST, is_finite_number

#: Sums of costs stay below this, so that everything computed from them stays a finite number.
_MOST = 1e300


class PlacementError(ValueError):
    """A placement problem that means nothing: a cycle, a negative cost, an operator that no kind can run ..."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """``count`` devices alike, with ``memory`` each (``None``: unlimited), in the problem's memory unit.

    ``transfer_factor`` scales what a tensor costs a stage on this kind: 1 for an accelerator behind the usual link, 0
    where the data is there already (host memory, for a CPU), 2 behind a link half as fast.
    """

    name: str
    count: int
    memory: float | None = None
    transfer_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise PlacementError(f"devices {self.name!r}: count is {self.count}, it must be 0 or more")
        if self.memory is not None:
            _require_amount(self.memory, f"devices {self.name!r}: memory")
        _require_amount(self.transfer_factor, f"devices {self.name!r}: transfer factor")


@dataclass(frozen=True, slots=True)
class Node:
    """An operator. ``times`` has one entry a kind of device, ``None`` where that kind cannot run it.

    ``resident`` is held all the time, ``per_micro_batch`` once for each micro-batch in flight; both count only on kinds
    with limited memory. Operators with equal ``colocation`` (not ``None``) share a stage. ``gradient``: how much
    must be added up among the devices of a replicated stage. ``forward``: the forward's share of its times, in [0, 1];
    it matters to schedules of the stages only. ``parameters``: names and sizes of those it holds, where they are known;
    they tell plans of its stages what to expect, and the search nothing.
    """

    name: str
    times: tuple[float | None, ...]
    resident: float = 0.0
    per_micro_batch: float = 0.0
    colocation: Hashable | None = None
    backward: bool = False
    gradient: float = 0.0
    forward: float = 1 / 3
    parameters: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        where = f"operator {self.name!r}"
        for time in self.times:
            if time is not None:
                _require_amount(time, f"{where}: time")
        if all(time is None for time in self.times):
            raise PlacementError(f"{where}: no kind of device supports it, give it a time on at least one")
        _require_amount(self.resident, f"{where}: memory")
        _require_amount(self.per_micro_batch, f"{where}: memory per micro-batch")
        _require_amount(self.gradient, f"{where}: gradient")
        _require_amount(self.forward, f"{where}: share of the forward")
        if self.forward > 1:
            raise PlacementError(f"{where}: share of the forward is {self.forward!r:.60}, it must be at most 1")


@dataclass(frozen=True, slots=True)
class PlacementTensor:
    """The output of ``producer`` for ``consumers`` (indices of nodes); ``time`` is its cost for each stage it
    touches."""

    producer: int
    consumers: tuple[int, ...]
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Degree:
    """A stage may be on ``devices`` of its kind, two or more, which share every micro-batch.

    ``times``: per node, like :attr:`Node.times`, of the part of a micro-batch that one of the devices has.
    ``all_reduce``: the time to add up one unit of gradient among so many devices.
    """

    devices: int
    times: tuple[tuple[float | None, ...], ...]
    all_reduce: float = 0.0

    def __post_init__(self) -> None:
        if self.devices < 2:
            raise PlacementError(f"degrees: a stage on {self.devices} devices is not replicated, give 2 or more")
        _require_amount(self.all_reduce, f"stages on {self.devices} devices: time of the all-reduce")


@dataclass(frozen=True)
class PlacementProblem:
    """Operators, tensors and devices. ``micro_batches`` caps how many are in flight at once (``None``: no cap), and is
    how many a step has. ``degrees``, by rising number of devices: on how many a stage may be beside one."""

    name: str
    kinds: tuple[DeviceKind, ...]
    nodes: tuple[Node, ...]
    tensors: tuple[PlacementTensor, ...]
    micro_batches: int | None = None
    time_unit: str = "ms"
    memory_unit: str = "byte"
    degrees: tuple[Degree, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise PlacementError("the graph has no operators, it needs at least one")
        if not sum(kind.count for kind in self.kinds):
            raise PlacementError("there are no devices, at least one is needed")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise PlacementError(f"micro_batches is {self.micro_batches}, it must be 1 or more")
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise PlacementError(f"operators: the name {node.name!r} is used twice")
            names.add(node.name)
            if len(node.times) != len(self.kinds):
                raise PlacementError(f"operator {node.name!r}: {len(node.times)} times for {len(self.kinds)} kinds of "
                                     "device, it needs one for each")
        for index, tensor in enumerate(self.tensors):
            self._check_tensor(index, tensor)
        for less, degree in zip((1, *(degree.devices for degree in self.degrees)), self.degrees, strict=False):
            self._check_degree(degree, less)
        self._check_sums()
        self._check_acyclic()
        self._check_supported()

    def _check_tensor(self, index: int, tensor: PlacementTensor) -> None:
        for node in (tensor.producer, *tensor.consumers):
            if not 0 <= node < len(self.nodes):
                raise PlacementError(f"tensor {index}: there is no operator {node}, "
                                     f"they are numbered 0 to {len(self.nodes) - 1}")
        producer = self.nodes[tensor.producer]
        if not tensor.consumers:
            raise PlacementError(f"tensor {index}, produced by {producer.name!r}: it has no consumer, leave it out")
        _require_amount(tensor.time, f"tensor {index}, produced by {producer.name!r}: transfer time")
        for consumer in tensor.consumers:
            if producer.backward and not self.nodes[consumer].backward:
                raise PlacementError(f"tensor {index}: the backward operator {producer.name!r} feeds the forward "
                                     f"operator {self.nodes[consumer].name!r}; mark the latter as backward too")

    def _check_degree(self, degree: Degree, less: int) -> None:
        where = f"stages on {degree.devices} devices"
        if degree.devices <= less:
            raise PlacementError(f"{where} come after stages on {less}, give degrees by rising number of devices")
        if len(degree.times) != len(self.nodes):
            raise PlacementError(f"{where}: times of {len(degree.times)} operators, there are {len(self.nodes)}")
        for node, times in zip(self.nodes, degree.times, strict=True):
            if [time is None for time in times] != [time is None for time in node.times]:
                raise PlacementError(f"{where}: operator {node.name!r} has times on other kinds than by itself, it "
                                     "must have them on the same")
            for time in times:
                if time is not None:
                    _require_amount(time, f"{where}: operator {node.name!r}: time")
        if self.micro_batches is None and degree.all_reduce and any(node.gradient for node in self.nodes):
            raise PlacementError(f"{where} add up gradients once a step: say how many micro-batches a step has")

    def _check_sums(self) -> None:
        """Loads and memory are sums: they must be numbers that a float can hold."""
        factor = max(kind.transfer_factor for kind in self.kinds)
        tables = [[node.times for node in self.nodes], *(degree.times for degree in self.degrees)]
        gradient = sum(node.gradient for node in self.nodes)
        times = sum(max(time or 0.0 for time in column) for table in tables for column in table) + sum(
            degree.all_reduce * gradient for degree in self.degrees)
        for what, amount, unit in (
                ("times", times + max(1.0, factor) * sum(tensor.time for tensor in self.tensors), self.time_unit),
                ("operators' memory", sum(node.resident + self.devices * node.per_micro_batch for node in self.nodes),
                 self.memory_unit),
                ("devices' memory", sum(kind.count * (kind.memory or 0.0) for kind in self.kinds), self.memory_unit)):
            if amount > _MOST:
                raise PlacementError(f"{self.name}: the {what} add up to {amount:.3g} {unit}, more than {_MOST:.0e} "
                                     "cannot be counted with; take a larger unit")

    def _check_acyclic(self) -> None:
        graph = nx.DiGraph((tensor.producer, consumer) for tensor in self.tensors for consumer in tensor.consumers)
        if not nx.is_directed_acyclic_graph(graph):
            cycle = [self.nodes[edge[0]].name for edge in nx.find_cycle(graph)]
            shown = cycle if len(cycle) <= 8 else [*cycle[:7], "..."]
            raise PlacementError(f"the operators {' -> '.join([*shown, cycle[0]])} form a cycle; "
                                 "an operator graph has none, remove one of these edges")

    def _check_supported(self) -> None:
        for members in self.classes:
            kinds = [k for k, kind in enumerate(self.kinds)
                     if kind.count and all(self.nodes[i].times[k] is not None for i in members)]
            if kinds:
                continue
            names = [self.nodes[i].name for i in members]
            if len(names) == 1:
                wanted = ", ".join(kind.name for k, kind in enumerate(self.kinds)
                                   if self.nodes[members[0]].times[k] is not None)
                raise PlacementError(f"operator {names[0]!r} runs on {wanted} only, and there is no such device; add "
                                     "one, or a time on another kind")
            shown = ", ".join(map(repr, names[:4])) + (" ..." if len(names) > 4 else "")
            raise PlacementError(f"operators {shown} must share a device, but no kind of device there is runs all of "
                                 "them; take them apart, or give times on one kind")

    @property
    def devices(self) -> int:
        """How many devices there are, which is the most stages there can be."""
        return sum(kind.count for kind in self.kinds)

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The colocation classes, each node without one in a class of its own, in the order of their first nodes."""
        found: dict[Hashable, list[int]] = {}
        for index, node in enumerate(self.nodes):
            key = ("alone", index) if node.colocation is None else ("class", node.colocation)
            found.setdefault(key, []).append(index)
        return tuple(tuple(members) for members in found.values())

    @cached_property
    def order(self) -> tuple[tuple[int, int], ...]:
        """Pairs of nodes: the first's stage is the second's or before it (see the module's text)."""
        has_forward = [False] * len(self.nodes)
        for members in self.classes:
            if any(not self.nodes[i].backward for i in members):
                for i in members:
                    has_forward[i] = True
        pairs: dict[tuple[int, int], None] = {}
        for tensor in self.tensors:
            source = tensor.producer
            for target in tensor.consumers:
                if not self.nodes[target].backward:
                    pairs[source, target] = None
                elif self.nodes[source].backward and not (has_forward[source] and has_forward[target]):
                    pairs[target, source] = None
        return tuple(pairs)

    def in_flight(self, depth: int) -> int:
        """The number of micro-batches at once in a stage that is ``depth``-th from the end (the last: 1)."""
        return depth if self.micro_batches is None else min(depth, self.micro_batches)


def _require_amount(value: float, where: str) -> None:
    if not is_finite_number(value):
        raise PlacementError(f"{where} is {value!r:.60}, it must be a finite number of at most {LARGEST:g}")
    if value < 0:
        raise PlacementError(f"{where} is {value!r:.60}, it must be 0 or more")
