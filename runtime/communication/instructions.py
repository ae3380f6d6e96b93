"""One rank's program of computation and communication: steps on lanes, and waits.

A step runs one stage, or one chunk of it, as a list of calls: of one kernel or collective, or of several where stages
are fused. A step of the compute lane runs in the instructions' thread; one of a network lane is started there and runs
beside the following ones. All ranks have their steps on a lane in one common order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: Where a step runs: in the instructions' thread, on the lane of the group's collectives, on the lane between groups.
Lane: TypeAlias = Literal["compute", "network", "sends"]
#: A stage, and the number of its chunk.
Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Chunk:
    """Elements of a tensor: its ``axis`` (``None``: all of its elements, flattened) is cut into ``pieces`` equal ones,
    and each of these into ``count`` parts, of which the chunk has number ``index``."""

    axis: int | None
    index: int
    count: int
    pieces: int = 1

    def bounds(self, size: int) -> tuple[int, int]:
        """Begin and end within each piece, of an axis of ``size``."""
        piece = size // self.pieces
        return piece * self.index // self.count, piece * (self.index + 1) // self.count


@dataclass(frozen=True)
class TensorPart:
    """A tensor by name, or a chunk of it."""

    name: str
    chunk: Chunk | None = None


@dataclass(frozen=True)
class StageCall:
    """One kernel or collective, by ``kind``; tensors by name. ``function``: of a pointwise one, ``function(torch,
    *tensors, **attributes)``. ``axis``: of the slices that it cuts or joins (``None``: all elements, flattened).
    ``over_ranks``: a norm whose operand is sliced. ``chunk``: of the output, where it is cut. ``peers``: of a send, the
    global indices of the sending and of the receiving rank."""

    stage: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    axis: int | None = None
    over_ranks: bool = False
    chunk: Chunk | None = None
    peers: tuple[int, int] | None = None


@dataclass(frozen=True)
class LaneStep:
    """``calls`` on a ``lane``: ``reads`` and ``writes`` are their inputs from outside and their outputs to others.

    ``after``: steps of another network lane that end before it begins. ``seconds``: its least duration.
    """

    key: Key
    lane: Lane
    calls: tuple[StageCall, ...]
    reads: tuple[TensorPart, ...]
    writes: tuple[TensorPart, ...]
    after: tuple[Key, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class LaneWait:
    """Wait until these steps of network lanes are over."""

    keys: tuple[Key, ...]


Instruction: TypeAlias = LaneStep | LaneWait


@dataclass(frozen=True)
class RankTensor:
    """A tensor on this rank: its shape, bytes of an element, and its part of the whole one of shape ``whole``: ``lies``
    is ``"local"``, ``"replicated"`` or ``"sliced"`` along ``axis`` (``None``: flattened)."""

    shape: tuple[int, ...]
    itemsize: int
    lies: str
    axis: int | None
    whole: tuple[int, ...]


@dataclass(frozen=True)
class LaneProgram:
    """``instructions`` of rank ``index`` of the ``ranks`` of pipeline group ``group``; ``values``: all tensors of the
    program by name; ``given``: this rank's external inputs; ``kept``: its outputs. ``digest`` identifies the program:
    the same on all ranks that run one."""

    index: int
    ranks: int
    group: int
    groups: int
    digest: str
    instructions: tuple[Instruction, ...]
    values: Mapping[str, RankTensor]
    given: tuple[str, ...]
    kept: tuple[str, ...]
