"""Times of stages: matmuls by operations, pointwise stages by bytes moved, collectives by bytes and launch.

A collective passes its parts round a ring (Patarasuk and Yuan, 2009): for a tensor of B bytes on N ranks an all-reduce
sends 2 B (N - 1) / N from each, a reduce-scatter or an all-gather half of that; a reduce and a broadcast send B down a
chain. A pointwise stage reads its operands and writes its result, for a slice 1/N of these. Slices are views, and an
``update`` uses data already written: both take no time. The intermediate tensors of a fused stage are not moved through
memory unless a norm comes in between, which requires a completed pass over the tensors; and it is launched once. A
fused stage with a collective overlaps other computation, as CoCoNet's fused collectives overlap a matmul. A norm of a
slice sums one number over the ranks, which takes a launch.

Prices of stages on a type of device: the rates of its kernels and rings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from weft.models.communication.program import COLLECTIVES, CommunicationError, CommunicationProgram, ProgramStage
from weft.models.hardware.devices import DEVICES, DeviceType
from weft.models.layers.collectives import collective_time

#: The engines of a pipeline group: for computation, for collectives, and for sends to the next group.
Engine: TypeAlias = tuple[Literal["compute", "network", "link"], int]
_FREE = ("slice", "update")


@dataclass(frozen=True)
class Prices:
    """``bandwidth``: bytes a second that a rank sends in collectives; ``link``: to the next group (``None``: the same);
    ``memory``: bytes a second read and written; ``launch``: seconds for each launch of a collective or send,
    ``kernel``: of any other stage. ``flops``: operations a second of matmuls. ``compute``: overrides the seconds of
    stages of the program as written, by name: a slice takes its share of that.

    Raises :class:`~weft.models.communication.program.CommunicationError` for rates that are not positive, and negative
    seconds.
    """

    bandwidth: float
    memory: float
    launch: float = 0.0
    kernel: float = 0.0
    flops: float | None = None
    link: float | None = None
    compute: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label in ("bandwidth", "memory", "flops", "link"):
            rate = getattr(self, label)
            if rate is not None and not 0 < rate < math.inf:
                raise CommunicationError(f"prices: {label} is {rate}, a rate is above 0")
        for label, seconds in (("launch", self.launch), ("kernel", self.kernel), *self.compute.items()):
            if not 0 <= seconds < math.inf:
                raise CommunicationError(f"prices: {label} takes {seconds} seconds, it takes 0 or more")


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The engines that a stage occupies together, and the time: ``seconds`` for all its chunks together, ``launch`` for
    each."""

    engines: tuple[Engine, ...]
    seconds: float
    launch: float


def work_of(program: CommunicationProgram, stage: ProgramStage, prices: Prices,
            written: CommunicationProgram | None = None) -> tuple[EngineWork, ...]:
    """The pieces of work of ``stage`` in sequence; none if it takes no time.

    ``written``: the program to which ``prices.compute`` refers, by default ``program`` itself. Raises
    :class:`~weft.models.communication.program.CommunicationError` for a matmul without a price.
    """
    group = program.group_of(stage)
    leaves = list(stage.leaves())
    moving = [leaf for leaf in leaves if leaf.kind == "send" or (program.ranks > 1 and leaf.kind in COLLECTIVES)]
    computing = [leaf for leaf in leaves if leaf.kind not in (*COLLECTIVES, *_FREE)]
    sums = sum(leaf.kind == "norm" and _is_sliced(program, leaf) for leaf in leaves) * prices.launch
    seconds = sum(_sent(program, leaf, prices) for leaf in moving) + _computed(program, stage, computing, prices,
                                                                             written or program)
    if moving:
        engines = dict.fromkeys(("link" if leaf.kind == "send" else "network", program.group_of(leaf))
                                for leaf in moving)
        return _lasting(EngineWork(tuple(engines), seconds, prices.launch + sums))  # type: ignore[arg-type]
    if not computing:
        return ()
    compute: Engine = ("compute", group)
    if stage.parts and sums:
        return (EngineWork((compute, ("network", group)), seconds, prices.kernel + sums),)
    return (*_lasting(EngineWork((compute,), seconds, prices.kernel)),
            *_lasting(EngineWork((("network", group),), 0.0, sums)))


def require_named(written: CommunicationProgram, prices: Prices) -> None:
    """Raise :class:`~weft.models.communication.program.CommunicationError` unless ``prices.compute`` names only compute
    stages of ``written``, including parts of fused ones: others would be ignored."""
    computing = [name for name, leaf in written.leaves.items() if leaf.kind not in (*COLLECTIVES, *_FREE)]
    for name in prices.compute:
        if name not in computing:
            why = f"it is of kind {written.leaves[name].kind}" if name in written.leaves else "there is no such stage"
            raise CommunicationError(f"prices: compute has seconds of {name!r}, but {why}: name stages that compute, "
                                     f"of {', '.join(computing) or 'which there are none'}")


def _lasting(work: EngineWork) -> tuple[EngineWork, ...]:
    return (work,) if work.seconds + work.launch > 0 else ()


def _is_sliced(program: CommunicationProgram, leaf: ProgramStage) -> bool:
    return program.ranks > 1 and program.tensors[leaf.inputs[0]].layout == "sliced"


def _sent(program: CommunicationProgram, leaf: ProgramStage, prices: Prices) -> float:
    """Seconds that a rank sends in a collective, without latency."""
    whole, ranks = program.tensors[leaf.outputs[0]].bytes, program.ranks
    if leaf.kind == "send":
        return program.tensors[leaf.inputs[0]].held_bytes(ranks) / (prices.link or prices.bandwidth)
    shares = {"all_reduce": 2 * (ranks - 1) / ranks, "reduce": 1.0, "broadcast": 1.0}
    return whole * shares.get(leaf.kind, (ranks - 1) / ranks) / prices.bandwidth


def _computed(program: CommunicationProgram, stage: ProgramStage, leaves: Iterable[ProgramStage], prices: Prices,
              written: CommunicationProgram) -> float:
    """Seconds of all computation of a stage."""
    seconds = 0.0
    passes = _passes(stage)
    read: set[tuple[int, str]] = set()
    left: set[str] = set()
    same = {leaf.outputs[0]: leaf.inputs[1] for leaf in stage.leaves() if leaf.kind == "update"}
    made = {leaf.outputs[0]: passes[leaf.name] for leaf in stage.leaves() if leaf.kind not in _FREE}
    for leaf in leaves:
        if leaf.name in prices.compute:
            whole = written.leaves.get(leaf.name) or written.stage(leaf.name)
            seconds += prices.compute[leaf.name] * _amount(program, leaf) / _amount(written, whole)
        elif leaf.kind == "matmul":
            if prices.flops is None:
                raise CommunicationError(f"prices: the matmul {leaf.name!r} has no price: give flops, or its seconds "
                                         "in compute")
            seconds += _amount(program, leaf) / prices.flops
        else:
            now = passes[leaf.name]
            found = {_origin(name, same) for name in leaf.inputs}
            read |= {(now, name) for name in found if made.get(name) != now}
            left |= {name for name in found if made.get(name, now) != now}
            left |= {_origin(name, same) for name in stage.outputs}.intersection(leaf.outputs)
    moved = [*(name for _, name in read), *left]
    return seconds + sum(program.tensors[name].held_bytes(program.ranks) for name in moved) / prices.memory


def _passes(stage: ProgramStage) -> dict[str, int]:
    """The pass over its tensors in which a fused stage runs each part: readers of a norm wait for the end of a pass."""
    made: dict[str, int] = {}
    found = {}
    for leaf in stage.leaves():
        found[leaf.name] = max((made.get(name, 0) for name in leaf.inputs), default=0)
        made |= dict.fromkeys(leaf.outputs, found[leaf.name] + (leaf.kind == "norm"))
    return found


def _origin(name: str, same: Mapping[str, str]) -> str:
    """The tensor whose memory ``name`` uses, through updates."""
    while name in same:
        name = same[name]
    return name


def _amount(program: CommunicationProgram, leaf: ProgramStage) -> float:
    """A rank's work: operations of a matmul, bytes of other stages."""
    ranks = program.ranks
    if leaf.kind != "matmul":
        return sum(program.tensors[name].held_bytes(ranks) for name in (*leaf.inputs, *leaf.outputs))
    left, made = program.tensors[leaf.inputs[0]], program.tensors[leaf.outputs[0]]
    return 2.0 * math.prod(made.held_shape(ranks)) * left.held_shape(ranks)[-1]


#: Bytes of an all-reduce that reaches the rate of its links.
_LARGE = 1 << 40


def prices_on(device: DeviceType | str, ranks: int, *, machines: int = 1, dtype: str = "float16",
              compute: Mapping[str, float] | None = None) -> Prices:
    """Prices of a program on ``ranks`` devices of a type, given by name or object, in the given number of ``machines``.

    Collectives have the rate of a large all-reduce among these ranks
    (:func:`~weft.models.layers.collectives.collective_time`), sends the network's, pointwise stages the attained share
    of the memory's rate, matmuls of ``dtype`` the share of the peak attained by forwards. ``compute``: overrides
    seconds of stages by name. Raises :class:`~weft.models.communication.program.CommunicationError` for machines that
    do not divide the ranks, and for an unknown device or dtype.
    """
    if isinstance(device, str) and device not in DEVICES:
        raise CommunicationError(f"prices: there is no device {device!r}; there are {', '.join(DEVICES)}")
    found = DEVICES[device] if isinstance(device, str) else device
    if ranks < 1 or machines < 1 or ranks % machines:
        raise CommunicationError(f"prices: {machines} machines do not divide {ranks} ranks")
    if dtype not in found.flops:
        raise CommunicationError(f"prices: {found.name} has no peak of {dtype}, only of {', '.join(found.flops)}")
    latency = collective_time("all_reduce", 1, ranks, found, machines=machines).seconds
    seconds = collective_time("all_reduce", _LARGE, ranks, found, machines=machines).seconds - latency
    rate = 2 * (ranks - 1) / ranks * _LARGE / seconds if ranks > 1 else found.link
    return Prices(bandwidth=rate, link=found.network,
                  memory=found.bandwidth * found.reach["pointwise", "forward"].memory, launch=latency,
                  kernel=found.launch["forward"], flops=found.flops[dtype] * found.reach["gemm", "forward"].compute,
                  compute=compute or {})
