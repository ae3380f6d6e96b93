"""One rank's run of a program of computation and communication, within the process group that the caller has opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from weft.app.communication.lowering import Emulated, lower
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.runtime.communication.channel import require_group
from weft.runtime.communication.chunking import slice_of
from weft.runtime.communication.executor import Lap, ProgramExecutor
from weft.solver.schedule import Schedule


class ProgramOnRank:
    """``program``, ready to run on this rank of ``group`` (by default all): rank i of pipeline group g, of N ranks
    each, is rank g N + i. To be made, and run, by all ranks together.

    Collectives run beside computation: each starts once what it reads is there, on a thread (on CUDA: a stream) of its
    own, and is waited for just before its result is read; chains of ``program.overlaps`` run in chunks.

    ``schedule``: one of this program, such as ``tuned.schedule``: each lane then has its order (the same on all ranks:
    search with ``effort``, not with a time limit, or on one rank for all). ``compiled``: let
    ``torch.compile`` make one function of each fused stage (a string: with that backend); where it cannot, the stage
    runs as it is, and :attr:`notes` says so. ``emulated``: what stages take at least, on CPUs. ``timeout``: seconds
    that a collective waits for the other ranks. ``half``: the type of elements of two bytes, bfloat16 by default.

    Raises ``ValueError`` where no process group is initialised, it has another number of ranks than the program, or
    ranks have different programs, and :class:`~weft.runtime.communication.others.RankError` where another rank does
    not make it too.
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
        """What could not be done as asked, a sentence each."""
        return tuple(self._executor.notes)

    @property
    def laps(self) -> Sequence[Lap]:
        """When each step of the last run was at work: stage, chunk, lane, start and end (CPU only)."""
        return tuple(self._executor.laps)

    def run(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the program once: from what this rank holds of inputs, parameters and states, by name, to what it holds
        of outputs and of what is carried to the next step. Of a sliced tensor it holds its slice (:meth:`held`).

        Raises ``ValueError`` for a tensor that is missing, or of another shape, type or device, and
        :class:`~weft.runtime.communication.others.RankError` where another rank has failed, or is late by
        the timeout. After either, the program must be made anew.
        """
        return self._executor.run(tensors)

    def held(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """What this rank holds of the ``whole`` tensor ``name``: its slice, or all of it."""
        if name not in self.program.tensors:
            raise CommunicationError(f"the program has no tensor {name!r}")
        value = self._lowered.values[name]
        if tuple(whole.shape) != value.whole:
            raise ValueError(f"the tensor {name!r} has the shape {value.whole}, not {tuple(whole.shape)}")
        if value.lies != "sliced":
            return whole
        return slice_of(whole, value.axis, self._lowered.ranks, self._lowered.index).contiguous()

    def next_step(self, results: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Parameters and states, by name, as the next step reads them, from the results of one."""
        return {old: results[made] for made, old in self.program.carried.items() if made in results}

    def close(self) -> None:
        """End the threads of its collectives."""
        self._executor.close()
