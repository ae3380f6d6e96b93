"""One rank's program of computation and communication: steps on lanes, and waits.

A step runs one stage, or a chunk of it, as a list of calls of kernels and collectives; fused stages have several. A
step of the compute lane runs in the instructions' thread; a step of a network lane is started there and runs
concurrently with the following ones. All ranks have the steps of a lane in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: The lanes: the instructions' thread, the collectives of the group, messages between groups.
Lane: TypeAlias = Literal["compute", "network", "sends"]
#: A stage, and the number of its chunk.
Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Chunk:
    """A chunk of a tensor: its ``axis`` (``None``: all elements, flattened) is cut into ``pieces`` equal pieces, each
    piece into ``count`` parts, and the chunk has part ``index`` of every piece."""

    axis: int | None
    index: int
    count: int
    pieces: int = 1

    def bounds(self, size: int) -> tuple[int, int]:
        """The begin and end within each piece, for an axis of length ``size``."""
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
    """``calls`` on a ``lane``. ``reads``: their inputs from other steps. ``writes``: their outputs for other steps.

    ``after``: steps of another network lane that must be complete before. ``seconds``: the least duration.
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
    """Wait until these steps of network lanes are complete."""

    keys: tuple[Key, ...]


Instruction: TypeAlias = LaneStep | LaneWait


@dataclass(frozen=True)
class RankTensor:
    """A tensor on this rank: its shape, bytes per element, and the shape ``whole`` of the full tensor. ``lies``:
    ``"local"``, ``"replicated"``, or ``"sliced"`` along ``axis`` (``None``: flattened)."""

    shape: tuple[int, ...]
    itemsize: int
    lies: str
    axis: int | None
    whole: tuple[int, ...]


@dataclass(frozen=True)
class LaneProgram:
    """The ``instructions`` of rank ``index`` of the ``ranks`` in pipeline group ``group``. ``values``: all tensors of
    the program by name. ``given``: this rank's external inputs. ``kept``: its outputs. ``digest``: the identity of the
    program, equal on all ranks."""

    index: int
    ranks: int
    group: int
    groups: int
    digest: str
    instructions: tuple[Instruction, ...]
    values: Mapping[str, RankTensor]
    given: tuple[str, ...]
    kept: tuple[str, ...]
