"""The scheduling problem: one micro-batch's graph of blocks, on devices with memory and links between them.

With choices, jobs or classes it is many plain problems in one:

*Choices.* Exactly one option of each choice is taken, the same for all micro-batches. A block (or a wait) exists under
the options that it names; two blocks may bear one name under options that exclude each other. What waits for a block
that no option taken contains is void. :meth:`Problem.under` takes options.

*Jobs.* A block may belong to a job; micro-batches are counted per job. Jobs share devices, memory and links.

*Classes.* Durations, amounts of memory and lags may be given per class; a :class:`~weft.solver.problem.rounds.Run` says
the class of every micro-batch.

Every class checks itself on construction and raises :class:`ProblemError`, whose message names the entry at fault, the
value found and the values allowed. All of them are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import product
from math import prod

from weft.solver.late import nx
from weft.solver.model_facts import ModelFacts
from weft.solver.problem.block import Block, Dependency, Device, Link, Options, all_classes, holds, options_text, owners
from weft.solver.problem.refusals import (
    by_name,
    is_simple,
    refuse_choices,
    refuse_classes,
    refuse_jobs,
    refuse_names,
    require_option,
)
from weft.solver.values import ProblemError, require_distinct, require_name

#: Of up to so many assignments each is looked at for a circle of waits before the search; of more when it gets there.
_LOOKED_AT = 4096


@dataclass(frozen=True)
class Problem:
    """One micro-batch's blocks on their devices. The number of micro-batches is not part of it.

    A device and its lanes are a *pool*: they share its memory. A block may occupy several devices of one pool; the
    amounts that it takes and gives on each add up.

    ``choices`` has the options of each choice, of which there may be none. Algorithms schedule plain problems
    (:attr:`is_plain`), whose blocks have one name each, and :attr:`index` is that of a plain one.

    Raises :class:`ProblemError` for duplicate names, unknown names, a device out of range, a lane whose owner does not
    exist or is a lane itself, a link that does not join the blocks that use it, a cycle among dependencies of
    distance 0, and for choices, jobs and classes without a meaning.
    """

    name: str
    devices: tuple[Device, ...]
    blocks: tuple[Block, ...]
    links: tuple[Link, ...] = ()
    time_unit: str = "s"
    memory_unit: str = "B"
    #: The contents of the stages, if known; not part of the instance that is solved.
    model: ModelFacts | None = None
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, text in (("problem", self.name), ("time_unit", self.time_unit), ("memory_unit", self.memory_unit)):
            require_name(text, what)
        if not self.devices:
            raise ProblemError("devices is empty, a problem has at least one device")
        if not self.blocks:
            raise ProblemError("blocks is empty, a problem has at least one block")
        require_distinct("devices", (device.name for device in self.devices))
        if not self.choices:
            require_distinct("blocks", (block.name for block in self.blocks))
        require_distinct("links", (link.name for link in self.links))
        self._check_lanes()
        object.__setattr__(self, "index", {block.name: i for i, block in enumerate(self.blocks)})
        for link in self.links:
            for label, device in (("source", link.source), ("target", link.target)):
                self._require_device(device, f"link {link.name!r}: {label}")
        is_plain, count = not self.choices, len(self.devices)
        for block in self.blocks:
            for device in block.devices:
                if not 0 <= device < count:
                    self._require_device(device, f"block {block.name!r}: devices")
            is_plain = is_plain and block.is_plain
        if not is_plain:
            refuse_choices(self.blocks, self.choices)
            refuse_jobs(self.blocks)
            refuse_classes(self.blocks)
            refuse_names(self.alternatives)
        if not self.choices:
            self._check_waits()
        elif self.assignment_count <= _LOOKED_AT and not is_simple(self.blocks, self.choices):
            for options in self.assignments:
                try:
                    self.under(options)._check_waits()
                except ProblemError as error:
                    raise ProblemError(f"{error} (under {options_text(options)})") from None

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

    @cached_property
    def alternatives(self) -> Mapping[str, tuple[Block, ...]]:
        """The blocks by name, in file order: those of one name exclude each other."""
        return by_name(self.blocks)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes of micro-batches; none where all are alike."""
        return all_classes(self.blocks)

    def classes_of(self, job: str | None) -> tuple[str, ...]:
        """The classes of the micro-batches of ``job``."""
        return all_classes(block for block in self.blocks if block.job == job)

    @cached_property
    def jobs(self) -> tuple[str, ...]:
        """The jobs; none where there are no jobs."""
        return tuple(dict.fromkeys(block.job for block in self.blocks if block.job is not None))

    @cached_property
    def is_plain(self) -> bool:
        """Whether nothing is left to be decided or told apart: no choices, no classes, and one job at most."""
        return not self.choices and not self.classes and len(self.jobs) <= 1

    @property
    def assignments(self) -> Iterator[dict[str, str]]:
        """Every way to take one option of each choice."""
        for options in product(*self.choices.values()):
            yield dict(zip(self.choices, options, strict=True))

    @property
    def assignment_count(self) -> int:
        """How many :attr:`assignments` there are."""
        return prod(map(len, self.choices.values()))

    def under(self, options: Options) -> Problem:
        """The problem where ``options`` are taken: other choices stay open. Raises :class:`ProblemError` for options
        that there are not."""
        for choice, option in options.items():
            require_option(self.choices, choice, option, "options")
        kept = [block.under(options) for block in self.blocks if holds(block.when, options)]
        names = {block.name for block in kept}
        blocks = tuple(block if all(wait.block in names for wait in block.after) else
                       replace(block, after=tuple(wait for wait in block.after if wait.block in names))
                       for block in kept)
        made = object.__new__(Problem)  # a part of what is checked
        for name, value in {**{label: getattr(self, label) for label in self.__dataclass_fields__},
                            "blocks": blocks, "index": {block.name: i for i, block in enumerate(blocks)},
                            "choices": {choice: of for choice, of in self.choices.items() if choice not in options}
                            }.items():
            object.__setattr__(made, name, value)
        return made

    def plain(self, name: str | None = None) -> Problem:
        """The plain problem of micro-batches of class ``name``. Raises :class:`ProblemError` where choices are open,
        and for a circle of waits."""
        if self.choices:
            raise ProblemError(f"the choice {next(iter(self.choices))!r} is open")
        if not self.blocks:
            raise ProblemError("blocks is empty: no block exists under these options")
        return replace(self, blocks=tuple(block.of_class(name) for block in self.blocks))

    def require_plain(self) -> None:
        """Raises :class:`ProblemError` unless it :attr:`is_plain`."""
        if not self.is_plain:
            raise ProblemError(f"{self.name}: has choices, jobs or classes, and only a plain problem has an order: "
                               "take an option of each choice, and count the micro-batches of each job and class")

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

    def _check_waits(self) -> None:
        """Those of a problem without choices: for blocks that there are, over links that join them, in no circle."""
        if not self.blocks:
            raise ProblemError("blocks is empty: no block exists under these options")
        for block in self.blocks:
            for dependency in block.after:
                if dependency.block not in self.index:
                    raise ProblemError(f"block {block.name!r}: after {dependency.block!r}: there is no block of that "
                                       "name")
                if dependency.link is not None:
                    self._check_link(block, dependency, dependency.link)
        self._refuse_cycles()

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

    def _check_link(self, block: Block, dependency: Dependency, name: str) -> None:
        where = f"block {block.name!r}: after {dependency.block!r}"
        if name not in self.links_by_name:
            raise ProblemError(f"{where}: there is no link named {name!r}")
        link = self.links_by_name[name]
        producer = self.blocks[self.index[dependency.block]]
        if link.source not in producer.devices or link.target not in block.devices:
            raise ProblemError(f"{where}: link {link.name!r} goes from device {link.source} to device {link.target}, "
                               f"but the blocks run on {list(producer.devices)} and {list(block.devices)}")
