"""A placement on groups of GPUs that compute layers together, with options for the collectives of each stage.

Each stage has the choice ``overlap: stage s`` among its ways (:mod:`weft.models.overlap.ways`), one for all of its
layers and micro-batches; with several stages each has only its fastest ways. With more than a few stages, those with
equal numbers of GPUs share one choice ``overlap: d GPUs``: the bound is then proven for stages with the same way.

A stage's forward is one block under each way, and so is its backward: within it, its collectives and its computation
overlap according to the way, and nothing of another micro-batch runs in between. In *pairs* two micro-batches pass
together as one, and the collectives of each run beside the computation of the other. With few layers, collectives may
be separate blocks on the network lanes (:mod:`weft.models.overlap.flow`), which overlap the computation of other
micro-batches; a pass in one block then occupies its GPUs' lanes as well, as it has collectives inside.

*Sends.* A stage's output is whole on each of its GPUs, or in slices. Slices are sent directly between stages with equal
numbers of GPUs, which takes 1/N of the time, and are gathered at the receiver if it needs the tensor whole. For a whole
output each GPU may also send only its slice, to be gathered there: the choice ``send: stage s``, if that is shorter.
Between groups of different size slices are gathered before they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.models.candidates.stage_blocks import forward_block
from weft.models.overlap.flow import apart_blocks
from weft.models.overlap.placement import OverlapPlacement, lane_name
from weft.models.overlap.ways import MOST_PIECES, NONE, Between, Way, Ways, fastest
from weft.models.tensor_parallel.parts import LayersPart, gpu_name, gradient_name, joined_parts, part_backward, places
from weft.models.tensor_parallel.shapes import ShapeCandidate
from weft.models.tensor_parallel.space import Space
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: The options of sends.
WHOLE, SLICES = "whole", "slices"
#: The choice for the sends of all stages.
_SEND = "send"
#: Up to this many stages, each has a separate choice.
_MOST_CHOICES = 4


def overlap_of(ways: Ways, candidate: ShapeCandidate) -> OverlapPlacement | None:
    """``candidate``, whose backward is that of ``ways``, with the options of its collectives; ``None`` if no option
    saves time."""
    space, pairs = ways.space, ways.pairs
    made = _Together(space, candidate, ways)
    if not made.choices:
        return None
    group_of = {gpu: number for number, group in enumerate(candidate.gpus) for gpu in group}
    memory = tuple(space.capacity - candidate.static_memory[group_of[gpu]] for gpu in sorted(group_of))
    bare = {choice: NONE if NONE in options else WHOLE for choice, options in made.choices.items()}
    return OverlapPlacement("pairs" if pairs else "", made.problem, (bare,), 2 if pairs else 1, candidate.gpus, memory)


class _Together:
    """The blocks of a candidate under all ways of its parts."""

    def __init__(self, space: Space, candidate: ShapeCandidate, ways: Ways) -> None:
        self.space, self.candidate, self.backward = space, candidate, candidate.backward
        self.parts = candidate.parts
        self.where = places(self.parts, candidate.gpus)
        self.joined = [(source, target, size * (2 if ways.pairs else 1))
                       for source, target, size in joined_parts(space.graph, space.layers, self.parts)]
        self.ways = {part.name: ways.of(part) for part in self.parts}
        open_stages = sum(len(own) > 1 for own in self.ways.values())
        if open_stages > 1:
            self.ways = {name: fastest(own) for name, own in self.ways.items()}
        self.is_shared = open_stages > _MOST_CHOICES
        if self.is_shared:
            self._keep_common()
        if sum(max(sum(map(len, way.apart or ())) for way in own) for own in self.ways.values()) > MOST_PIECES:
            self.ways = {name: tuple(way for way in own if way.apart is None) for name, own in self.ways.items()}
        self.has_lanes = any(way.apart is not None for own in self.ways.values() for way in own)
        self.choices = self._choices()

    def _keep_common(self) -> None:
        """The ways common to all stages that share a choice."""
        for degree in {part.degree for part in self.parts}:
            alike = [part.name for part in self.parts if part.degree == degree]
            common = set.intersection(*({way.name for way in self.ways[name]} for name in alike))
            for name in alike:
                self.ways[name] = tuple(way for way in self.ways[name] if way.name in common)

    def _choices(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for part in self.parts:
            if len(self.ways[part.name]) > 1:
                found[self._choice(part)] = tuple(way.name for way in self.ways[part.name])
        for source, target, size in self.joined:
            if self._has_slices(source, target, size):
                found[_SEND] = (WHOLE, SLICES)
        return found

    def _choice(self, part: LayersPart) -> str:
        return f"overlap: {part.degree} GPUs" if self.is_shared else f"overlap: stage {part.name}"

    def _when(self, part: LayersPart, way: Way) -> dict[str, str]:
        return {self._choice(part): way.name} if len(self.ways[part.name]) > 1 else {}

    @property
    def problem(self) -> Problem:
        """The whole problem."""
        static = self.candidate.static_memory
        devices = [Device(gpu_name(group), self.space.capacity - held, held)
                   for group, held in zip(self.candidate.gpus, static, strict=True)]
        if self.has_lanes:
            devices += [Device(lane_name(device.name), lane_of=device.name) for device in devices]
        return Problem(f"{self.candidate.problem.name}, overlap", tuple(devices), tuple(self._blocks()),
                       choices=self.choices)

    def _blocks(self) -> Iterator[Block]:
        for part in self.parts:
            for way in self.ways[part.name]:
                waits = [wait for source, target, size in self.joined if target is part
                         for wait in self._waits(f"F{source.name}", source, (part, way), size, _SEND)]
                plain = forward_block(part.name, way.cost, self.where[part.name], self.backward, ())
                yield from self._spread(plain, waits, part, way)
        for part in reversed(self.parts) if self.backward != "none" else ():
            for way in self.ways[part.name]:
                waits = [wait for source, target, size in self.joined if source is part and target.cost.backward
                         for wait in self._waits(gradient_name(target, self.backward), target, (part, way), size,
                                                 _SEND)]
                for block in part_backward(replace(part, cost=way.cost), self.where[part.name], (), self.backward):
                    own = [Dependency(wait.block) for wait in block.after]
                    yield from self._spread(block, own or waits or [Dependency(f"F{part.name}")], part, way)

    def _spread(self, block: Block, waits: Sequence[Dependency], part: LayersPart, way: Way) -> list[Block]:
        """``block`` of ``part`` under ``way``: whole, with the lanes of its collectives, or in pieces."""
        count = len(self.candidate.gpus)
        made = replace(block, after=tuple(waits), when=self._when(part, way))
        if block.kind == BlockKind.WEIGHT_GRAD:
            return [made]
        if way.apart is not None:
            own = way.apart[block.kind != BlockKind.FORWARD]
            return apart_blocks(made, own, {device: device + count for device in block.devices}) if own else [made]
        if not self.has_lanes or part.degree == 1:
            return [made]
        lanes = tuple(device + count for device in block.devices)
        return [replace(made, devices=block.devices + lanes, memory=block.memory + (0,) * len(lanes),
                        workspace=block.workspace + (0,) * len(lanes))]

    # -- sends

    def _waits(self, block: str, giver: LayersPart, taker: tuple[LayersPart, Way], size: int,
               send: str) -> list[Dependency]:
        """The waits of ``taker``, a part under one of its ways, for ``block`` of ``giver`` under each of its own."""
        part, way = taker
        found: list[Dependency] = []
        ways = self.ways[giver.name]
        if self._choice(giver) == self._choice(part):  # one choice: both go the same way
            ways = tuple(own for own in ways if own.name == way.name)
        for between in dict.fromkeys(own.between for own in ways):
            lags = {option: self._lag(size, (giver, between), (part, way.between), slices=option == SLICES)
                    for option in self.choices.get(send, (WHOLE,))}
            alike = [own for own in ways if own.between == between]
            every = len(alike) == len(ways)
            for own in alike[:1] if every else alike:
                when = {} if every else self._when(giver, own)
                if len(set(lags.values())) == 1:
                    found.append(Dependency(block, lags[WHOLE], when=when))
                else:
                    found += [Dependency(block, lag, when={**when, send: option}) for option, lag in lags.items()]
        return found

    def _lag(self, size: int, giver: tuple[LayersPart, Between], taker: tuple[LayersPart, Between], *,
             slices: bool) -> float:
        """Seconds until ``taker`` has a tensor of ``size`` bytes in the required layout."""
        (source, lies), (target, needed) = giver, taker
        degree = source.degree

        def sent(amount: int) -> float:
            return self.space.network.seconds(amount, source.gpus, target.gpus)

        def gathered(on: int) -> float:
            return self.space.timer(on)("all_gather", -(-size // on))

        if degree != target.degree:
            return round((gathered(degree) if lies == "sliced" else 0.0) + sent(size), 9)
        part = sent(-(-size // degree))
        if lies == "sliced" or slices:
            return round(part + (gathered(degree) if needed == "whole" else 0.0), 9)
        return part if needed == "sliced" else sent(size)

    def _has_slices(self, source: LayersPart, target: LayersPart, size: int) -> bool:
        """Whether sending slices of a whole tensor is shorter."""
        lags = [self._lag(size, (source, "whole"), (target, "whole"), slices=slices) for slices in (False, True)]
        return source.degree == target.degree > 1 and lags[1] < lags[0]
