"""The scheduling problem: one micro-batch's graph of blocks, on devices with memory and links between them.

Every class checks itself on construction and raises :class:`ProblemError`, whose message names the entry at fault, the
value found and the values allowed. All of them are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from heapq import heappop, heappush

from weft.solver.late import nx
from weft.solver.model_facts import ModelFacts
from weft.solver.values import Number, ProblemError, require_amount, require_distinct, require_finite, require_name

__all__ = ["Block", "BlockKind", "Dependency", "Device", "Link", "Number", "Problem", "ProblemError",
           "owners"]


class BlockKind(StrEnum):
    """The work of a block. The search treats all kinds alike; baselines, pictures and the executor do not."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"
    RECOMPUTE = "recompute"
    COLLECTIVE = "collective"
    OTHER = "other"

    @property
    def letter(self) -> str:
        """The field's one-letter name: F, B (full backward), I (input-gradient), W (weight-gradient), R, C, O."""
        return {"input_grad": "I", "weight_grad": "W"}.get(self.value, self.value[0].upper())


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or anything else that runs one block at a time.

    ``memory`` is the capacity available to blocks at run time (weights and other constants are already subtracted), in
    the problem's memory unit; ``None`` is unlimited. ``static`` is the amount subtracted, if known: schedules do not
    need it, but people want to see it.

    With ``lane_of``, the name of another device, it is an engine of that device (its network, its copies): a lane. It
    runs one block at a time in parallel with its owner, has no rank and no memory of its own, and the amounts that its
    blocks take and give count on its owner.
    """

    name: str
    memory: Number | None = None
    static: Number = 0
    lane_of: str | None = None

    def __post_init__(self) -> None:
        require_name(self.name, "device")
        if self.memory is not None:
            require_amount(self.memory, f"device {self.name!r}: memory")
        require_amount(self.static, f"device {self.name!r}: static")
        if self.lane_of is None:
            return
        require_name(self.lane_of, f"device {self.name!r}: lane_of")
        for label, value in (("memory", self.memory), ("static", self.static or None)):
            if value is not None:
                raise ProblemError(f"device {self.name!r}: {label} is {value}, but a lane has none of its own: leave "
                                   f"it out, what its blocks hold counts on device {self.lane_of!r}")


def owners(devices: Sequence[Device]) -> tuple[int, ...]:
    """Per device, the one whose memory its blocks count on: its owner for a lane, else itself."""
    places = {device.name: d for d, device in enumerate(devices)}
    return tuple(d if device.lane_of is None else places[device.lane_of] for d, device in enumerate(devices))


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link between two devices (by index) that carries one transfer at a time.

    It may begin and end at one device: such as copies to the host, which is not a device (:mod:`weft.solver.offload`).
    """

    name: str
    source: int
    target: int

    def __post_init__(self) -> None:
        require_name(self.name, "link")


@dataclass(frozen=True, slots=True)
class Dependency:
    """The block with this entry waits for ``block``.

    ``lag`` is the transfer time after that block ends. With ``link``, the transfer occupies that link for
    ``lag``; a link carries its transfers one at a time, in the order in which their producers run on the
    link's source device. ``distance`` = 1 waits for the previous micro-batch's instance (2 for the one before, ...);
    the first micro-batches have nothing to wait for.
    """

    block: str
    lag: Number = 0
    link: str | None = None
    distance: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of one micro-batch's work that runs without interruption and occupies all its devices meanwhile.

    ``devices`` are indices into :attr:`Problem.devices`. ``duration`` > 0, in the problem's time unit.
    ``memory`` is the change on each of its devices, in the order of ``devices``: a positive amount is taken when the
    block starts, a negative one is given back when it ends. ``workspace`` (same shape, 0 or more) is taken at the start
    and given back at the end. A single number is the amount on every device.
    """

    name: str
    kind: BlockKind
    devices: tuple[int, ...]
    duration: Number
    memory: tuple[Number, ...] = ()
    workspace: tuple[Number, ...] = ()
    after: tuple[Dependency, ...] = ()

    def __post_init__(self) -> None:
        require_name(self.name, "block")
        here = f"block {self.name!r}"
        if not self.devices:
            raise ProblemError(f"{here}: devices is empty, a block runs on at least one device")
        if len(set(self.devices)) != len(self.devices):
            raise ProblemError(f"{here}: devices {list(self.devices)} names a device twice")
        require_finite(self.duration, f"{here}: duration")
        if self.duration <= 0:
            raise ProblemError(f"{here}: duration is {self.duration}, it must be greater than 0")
        for label in ("memory", "workspace"):
            amounts = getattr(self, label) or (0,) * len(self.devices)
            if len(amounts) == 1 and len(self.devices) > 1:
                amounts = amounts * len(self.devices)
            if len(amounts) != len(self.devices):
                raise ProblemError(f"{here}: {label} has {len(amounts)} entries for {len(self.devices)} devices")
            for amount in amounts:
                (require_amount if label == "workspace" else require_finite)(amount, f"{here}: {label}")
            object.__setattr__(self, label, tuple(amounts))
        for dependency in self.after:
            require_name(dependency.block, f"{here}: after")
            if dependency.link is not None:
                require_name(dependency.link, f"{here}: after {dependency.block!r}: link")
            require_amount(dependency.lag, f"{here}: after {dependency.block!r}: lag")
            if dependency.distance < 0:
                raise ProblemError(f"{here}: after {dependency.block!r}: distance is {dependency.distance}, "
                                   "it must be 0 or more")

    def memory_on(self, device: int) -> Number:
        """Memory change on ``device`` (0 if the block does not run there)."""
        return self.memory[self.devices.index(device)] if device in self.devices else 0

    def workspace_on(self, device: int) -> Number:
        """Workspace on ``device`` (0 if the block does not run there)."""
        return self.workspace[self.devices.index(device)] if device in self.devices else 0


@dataclass(frozen=True)
class Problem:
    """One micro-batch's blocks on their devices. The number of micro-batches is not part of it.

    A device and its lanes are a *pool*: they share its memory. A block may occupy several devices of one pool; the
    amounts that it takes and gives on each add up.

    Raises :class:`ProblemError` for duplicate names, unknown names, a device out of range, a lane whose owner does not
    exist or is a lane itself, a link that does not join the blocks that use it, and a cycle among dependencies of
    distance 0.
    """

    name: str
    devices: tuple[Device, ...]
    blocks: tuple[Block, ...]
    links: tuple[Link, ...] = ()
    time_unit: str = "s"
    memory_unit: str = "B"
    #: The contents of the stages, if known; not part of the instance that is solved.
    model: ModelFacts | None = None
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, text in (("problem", self.name), ("time_unit", self.time_unit), ("memory_unit", self.memory_unit)):
            require_name(text, what)
        if not self.devices:
            raise ProblemError("devices is empty, a problem has at least one device")
        if not self.blocks:
            raise ProblemError("blocks is empty, a problem has at least one block")
        require_distinct("devices", (device.name for device in self.devices))
        require_distinct("blocks", (block.name for block in self.blocks))
        require_distinct("links", (link.name for link in self.links))
        self._check_lanes()
        object.__setattr__(self, "index", {block.name: i for i, block in enumerate(self.blocks)})
        for link in self.links:
            for label, device in (("source", link.source), ("target", link.target)):
                self._require_device(device, f"link {link.name!r}: {label}")
        for block in self.blocks:
            for device in block.devices:
                self._require_device(device, f"block {block.name!r}: devices")
            for dependency in block.after:
                self._check_dependency(block, dependency)
        self._refuse_cycles()

    @cached_property
    def links_by_name(self) -> Mapping[str, Link]:
        """The links, by name."""
        return {link.name: link for link in self.links}

    @cached_property
    def blocks_on(self) -> tuple[tuple[int, ...], ...]:
        """Per device, the indices of the blocks that run there, in file order."""
        return tuple(tuple(places) for places in self.places_on)

    @cached_property
    def places_on(self) -> tuple[dict[int, int], ...]:
        """Per device, its blocks in file order, each with the device's place in the block's ``devices``."""
        places: tuple[dict[int, int], ...] = tuple({} for _ in self.devices)
        for i, block in enumerate(self.blocks):
            for place, device in enumerate(block.devices):
                places[device][i] = place
        return places

    @cached_property
    def has_lanes(self) -> bool:
        """Whether some device is a lane of another."""
        return any(device.lane_of is not None for device in self.devices)

    @cached_property
    def pool_of(self) -> tuple[int, ...]:
        """Per device, the device whose memory its blocks count on: its owner for a lane, else itself."""
        return owners(self.devices)

    @cached_property
    def lanes_of(self) -> tuple[tuple[int, ...], ...]:
        """Per device, its lanes; none for a lane."""
        lanes: list[list[int]] = [[] for _ in self.devices]
        for device, owner in enumerate(self.pool_of):
            if owner != device:
                lanes[owner].append(device)
        return tuple(map(tuple, lanes))

    @cached_property
    def pool_places(self) -> tuple[dict[int, tuple[int, ...]], ...]:
        """Per device, the blocks of its pool in file order, each with its places in the block's ``devices`` that belong
        to the pool; nothing for a lane."""
        pools: tuple[dict[int, tuple[int, ...]], ...] = tuple({} for _ in self.devices)
        for i, block in enumerate(self.blocks):
            for place, device in enumerate(block.devices):
                pool = pools[self.pool_of[device]]
                pool[i] = (*pool.get(i, ()), place)
        return pools

    @cached_property
    def topological_order(self) -> tuple[int, ...]:
        """Block indices, each after the blocks of the same micro-batch it waits for; ties in file order. Blocks that
        wait for each other in a cycle, and what follows them, are left out."""
        open_waits = [0] * len(self.blocks)
        followers: list[list[int]] = [[] for _ in self.blocks]
        for i, j, dependency in self.dependencies():
            if dependency.distance == 0:
                open_waits[j] += 1
                followers[i].append(j)
        ready = [i for i, waits in enumerate(open_waits) if not waits]
        order = []
        while ready:
            order.append(heappop(ready))
            for j in followers[order[-1]]:
                open_waits[j] -= 1
                if not open_waits[j]:
                    heappush(ready, j)
        return tuple(order)

    def dependencies(self) -> Iterable[tuple[int, int, Dependency]]:
        """All ``(producer, consumer, dependency)`` by block index, in file order."""
        for consumer, block in enumerate(self.blocks):
            for dependency in block.after:
                yield self.index[dependency.block], consumer, dependency

    def _check_lanes(self) -> None:
        owners = {device.name: device for device in self.devices}
        for device in self.devices:
            if device.lane_of is None:
                continue
            where = f"device {device.name!r}: lane_of is {device.lane_of!r}"
            if device.lane_of == device.name:
                raise ProblemError(f"{where}, but no device is a lane of itself: name the device it is an engine of")
            if device.lane_of not in owners:
                raise ProblemError(f"{where}, but there is no device of that name")
            if owners[device.lane_of].lane_of is not None:
                raise ProblemError(f"{where}, which is a lane itself: name the device both are engines of, "
                                   f"{owners[device.lane_of].lane_of!r}")

    def _refuse_cycles(self) -> None:
        if len(self.topological_order) == len(self.blocks):
            return
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.blocks)))
        graph.add_edges_from((i, j) for i, j, dependency in self.dependencies() if dependency.distance == 0)
        cycle = [self.blocks[i].name for i, _ in nx.find_cycle(graph)]
        raise ProblemError("the blocks wait for each other in a cycle: " + " -> ".join([*cycle, cycle[0]])
                           + "; remove one of these `after` entries or give it a distance of 1")

    def _require_device(self, device: int, where: str) -> None:
        if not 0 <= device < len(self.devices):
            raise ProblemError(f"{where} names device {device}, but there are {len(self.devices)} devices "
                               f"(0 to {len(self.devices) - 1})")

    def _check_dependency(self, block: Block, dependency: Dependency) -> None:
        where = f"block {block.name!r}: after {dependency.block!r}"
        if dependency.block not in self.index:
            raise ProblemError(f"{where}: there is no block of that name")
        if dependency.link is None:
            return
        if dependency.link not in self.links_by_name:
            raise ProblemError(f"{where}: there is no link named {dependency.link!r}")
        link = self.links_by_name[dependency.link]
        producer = self.blocks[self.index[dependency.block]]
        if link.source not in producer.devices or link.target not in block.devices:
            raise ProblemError(f"{where}: link {link.name!r} goes from device {link.source} to device {link.target}, "
                               f"but the blocks run on {list(producer.devices)} and {list(block.devices)}")
