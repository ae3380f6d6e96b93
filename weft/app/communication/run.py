"""One rank's run of a program of computation and communication, within the process group that the caller has opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from weft.app.communication.lowering import Emulated, lower
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.runtime.communication.calls import slice_of
from weft.runtime.communication.channel import require_group
from weft.runtime.communication.executor import Lap, ProgramExecutor
from weft.solver.schedule import Schedule


class ProgramOnRank:
    """``program``, ready to run on this rank of ``group`` (by default all): rank i of pipeline group g, of N ranks
    each, is rank g N + i. To be made, and run, by all ranks together.

    Collectives overlap computation: each starts once its inputs are available, on a separate thread (on CUDA: a
    stream), and is waited for just before its result is read; chains of ``program.overlaps`` run in chunks.

    ``schedule``: one of this program, such as ``tuned.schedule``, which each lane follows (the same on all ranks:
    search with ``effort``, not with a time limit, or on one rank for all). ``compiled``: compile each fused stage into
    one function by ``torch.compile`` (a string: with that backend); if that fails, the stage runs uncompiled, and
    :attr:`notes` says so. ``emulated``: minimum times of stages, on CPUs. ``timeout``: seconds that a collective waits
    for the other ranks. ``half``: the type of two-byte elements, bfloat16 by default.

    Raises ``ValueError`` if no process group is initialised, its number of ranks differs from the program's, or ranks
    have different programs, and :class:`~weft.runtime.communication.failures.RankError` if another rank does not
    construct it too.
    """

    def __init__(self, program: CommunicationProgram, group: dist.ProcessGroup | None = None,
                 device: torch.device | str = "cpu", *,
                 schedule: Schedule | None = None, compiled: bool | str = False, emulated: Emulated | None = None,
                 timeout: float = 60.0, half: torch.dtype | None = None) -> None:
        require_group(group)
        self.program = program
        self._lowered = lower(program, dist.get_rank(group), emulated, schedule)
        self._executor = ProgramExecutor(self._lowered, group, device, timeout=timeout, compiled=compiled,
                                         half=half or torch.bfloat16)

    @property
    def notes(self) -> Sequence[str]:
        """Requests that could not be met, one sentence each."""
        return tuple(self._executor.notes)

    @property
    def laps(self) -> Sequence[Lap]:
        """The times of each step of the last run: stage, chunk, lane, start and end (CPU only)."""
        return tuple(self._executor.laps)

    def run(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the program once: takes this rank's parts of inputs, parameters and states by name, and returns its parts
        of outputs and of the tensors carried to the next step. For a sliced tensor that is its slice (:meth:`held`).

        Raises ``ValueError`` for a tensor that is missing, or of another shape, type or device, and
        :class:`~weft.runtime.communication.failures.RankError` if another rank has failed or exceeded the timeout.
        After either, create the program again.
        """
        return self._executor.run(tensors)

    def held(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the ``whole`` tensor ``name``: its slice, or all of it."""
        if name not in self.program.tensors:
            raise CommunicationError(f"the program has no tensor {name!r}")
        value = self._lowered.values[name]
        if tuple(whole.shape) != value.whole:
            raise ValueError(f"the tensor {name!r} has the shape {value.whole}, not {tuple(whole.shape)}")
        if value.lies != "sliced":
            return whole
        return slice_of(whole, value.axis, self._lowered.ranks, self._lowered.index).contiguous()

    def next_step(self, results: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Parameters and states by name for the next step, from the results of a step."""
        return {old: results[made] for made, old in self.program.carried.items() if made in results}

    def close(self) -> None:
        """End the threads of its collectives."""
        self._executor.close()
