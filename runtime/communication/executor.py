"""Execution of a rank's program: computation in the caller's thread, collectives concurrently on separate channels.

All ranks have the steps of each lane in the same order, so there is no deadlock. A step of a network lane is started as
soon as its inputs are computed, and waited for just before the first reader of its outputs. Chunks of a tensor are
written into one tensor.

The computation of a fused step between two collectives is one function, compiled if the caller requests it and torch
supports it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.communication.calls import Calls, computes_alone, place, put, take
from weft.runtime.communication.channel import Channel, Pending, own_group
from weft.runtime.communication.failures import RankError
from weft.runtime.communication.instructions import Key, LaneProgram, LaneStep, LaneWait, StageCall
from weft.runtime.ranks.stopwatch import sleep_until


class Lap(NamedTuple):
    """The start and end of a step on a CPU, in seconds of :func:`time.perf_counter`."""

    stage: str
    chunk: int
    lane: str
    start: float
    end: float


class _Lane(NamedTuple):
    channel: Channel
    calls: Calls


class _Values(dict[str, Tensor]):
    """The tensors of one run by name; those that are not kept are released after the last step that reads them."""

    def __init__(self, given: Mapping[str, Tensor], program: LaneProgram) -> None:
        super().__init__(given)
        self._left = Counter(part.name for step in program.instructions if isinstance(step, LaneStep)
                             for part in step.reads if part.name not in program.kept)
        self._lock = threading.Lock()

    def has_read(self, step: LaneStep) -> None:
        """Release the inputs of ``step`` without further readers."""
        with self._lock:
            for part in step.reads:
                if part.name in self._left:
                    self._left[part.name] -= 1
                    if not self._left[part.name]:
                        del self[part.name]


class ProgramExecutor:
    """One rank's program, ready to run any number of times. All ranks of ``group`` must make it together.

    ``compiled``: let ``torch.compile`` make one function of a fused stage's kernels (a string: by that backend);
    :attr:`notes` records failures. ``half``: the type of 2-byte elements. Raises ``ValueError`` for a program of
    another number of ranks, and for ranks with different programs.
    """

    def __init__(self, program: LaneProgram, group: dist.ProcessGroup | None = None,
                 device: torch.device | str = "cpu", *, timeout: float = 60.0, compiled: bool | str = False,
                 half: torch.dtype = torch.bfloat16) -> None:
        self.program, self.device = program, torch.device(device)
        if self.device.type == "cuda" and any(isinstance(i, LaneStep) and i.seconds for i in program.instructions):
            raise ValueError("emulated durations are for ranks on CPUs: this one has a GPU, which takes its own time")
        self.dtypes = {2: half, 4: torch.float32, 8: torch.float64}
        for name, value in program.values.items():
            if value.itemsize not in self.dtypes:
                raise ValueError(f"the tensor {name!r} has elements of {value.itemsize} bytes, which ranks cannot sum: "
                                 f"take {', '.join(map(str, self.dtypes))}")
        self.notes: list[str] = []
        self.laps: list[Lap] = []
        self._fused = Fused(compiled, self.notes)
        everyone = Channel(group, self.device, timeout)
        everyone.agree({"the program": program.digest})
        self._channels = self._among(everyone)
        self._lanes = {name: _Lane(channel, self._direct(channel, everyone)) for name, channel in
                       self._channels.items()}
        network = self._lanes["network"]
        self._computing = Calls(program, network.channel.group, everyone.group, self.device, self.dtypes,
                                lambda name, begin: network.channel.start(name, begin).wait())
        self._failed: str | None = None

    def _among(self, everyone: Channel) -> dict[str, Channel]:
        """The channels of this rank; with several pipeline groups, also one of its own group."""
        program = self.program
        if everyone.size != program.ranks * program.groups:
            parts = f"{program.groups} groups of {program.ranks}" if program.groups > 1 else f"{program.ranks}"
            raise ValueError(f"the program is for {parts} ranks, but the process group has {everyone.size}")
        if program.groups == 1:
            return {"network": everyone}
        return {"sends": everyone, "network": Channel(
            everyone.group, self.device, everyone.timeout, only=self._own_ranks(), record=everyone.others.record)}

    def _own_ranks(self) -> range:
        first = self.program.group * self.program.ranks
        return range(first, first + self.program.ranks)

    def _direct(self, channel: Channel, everyone: Channel) -> Calls:
        """The calls that run on the channel itself, which waits for their collectives there."""
        group = channel.group
        if channel is everyone and self.program.groups > 1:  # for collectives fused with sends
            group = own_group(everyone.group, channel.timeout, self._own_ranks())

        def issue(_: str, begin: object) -> None:
            assert callable(begin)
            work = begin()
            if work is not None:
                work.wait()
        return Calls(self.program, group, everyone.group, self.device, self.dtypes, issue)

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the program on ``given``, this rank's parts of the external tensors; returns the kept tensors by name.

        Raises ``ValueError`` for tensors that are missing or have another shape, dtype or device, and
        :class:`~weft.runtime.communication.failures.RankError` if another rank has failed. After either, ranks are no
        longer synchronised, and the executor must be created again.
        """
        if self._failed is not None:
            raise RankError(f"this program has failed before, make it anew: {self._failed}")
        self.laps = []
        channel = self._lanes["network"].channel
        try:
            with channel.others.reporting("the program"), torch.no_grad():
                values = self._checked(given)
                pendings: dict[Key, Pending] = {}
                for instruction in self.program.instructions:
                    if isinstance(instruction, LaneWait):
                        self._wait(instruction.keys, pendings, values)
                    elif instruction.lane == "compute":
                        with channel.others.reporting(f"the stage {instruction.key[0]!r}"):
                            self._run(instruction, values, self._computing)
                    else:
                        pendings[instruction.key] = self._start(instruction, values, pendings)
                self._wait(tuple(pendings), pendings, values)
        except Exception as error:
            self._failed = str(error)
            raise
        return self._kept(values, given)

    def close(self) -> None:
        """End the channels."""
        for channel in self._channels.values():
            channel.close()

    # -- inputs and outputs --------------------------------------------------------------------------------------------

    def _checked(self, given: Mapping[str, Tensor]) -> _Values:
        for name in self.program.given:
            value = self.program.values[name]
            how = f"{value.lies} tensor {name!r} of shape {value.shape} and {value.itemsize} bytes an element"
            if name not in given:
                raise ValueError(f"the {how} is missing")
            tensor = given[name]
            if tuple(tensor.shape) != value.shape:
                raise ValueError(f"the {how} is given in shape {tuple(tensor.shape)}")
            if not tensor.is_floating_point() or tensor.element_size() != value.itemsize:
                raise ValueError(f"the {how} is given as {tensor.dtype}")
            if tensor.device.type != self.device.type:
                raise ValueError(f"the {how} is given on {tensor.device}, but the program runs on {self.device}")
        for name in given:
            if name not in self.program.values:
                raise ValueError(f"the program has no tensor {name!r}")
        return _Values({name: given[name].detach() for name in self.program.given}, self.program)

    def _kept(self, values: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The kept tensors; none of them shares memory with the ``given`` ones."""
        outside = {tensor.untyped_storage().data_ptr() for tensor in given.values()}
        found = {name: values[name] for name in self.program.kept}
        return {name: value.clone() if value.untyped_storage().data_ptr() in outside else value
                for name, value in found.items()}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _start(self, step: LaneStep, values: _Values, pendings: Mapping[Key, Pending]) -> Pending:
        lane, before = self._lanes[step.lane], [pendings[key] for key in step.after]

        def begin() -> None:
            for pending in before:
                pending.wait()
            self._run(step, values, lane.calls)
        tensors = [values[part.name] for part in step.reads if part.name in values]
        return lane.channel.start(step.key[0], begin, tensors)

    def _wait(self, keys: Sequence[Key], pendings: Mapping[Key, Pending], values: _Values) -> None:
        for key in keys:
            pendings[key].wait()
        if self.device.type == "cuda":  # the memory is the channel's stream's
            for value in values.values():
                value.record_stream(torch.cuda.current_stream())

    def _run(self, step: LaneStep, values: _Values, calls: Calls) -> None:
        """Run the calls of a step in this thread, for at least the step's ``seconds``."""
        begun = time.perf_counter()
        inside = {part.name: take(values[part.name], part.chunk) for part in step.reads}
        chunks = {part.name: part.chunk for part in step.writes}
        done = 0
        while done < len(step.calls):
            if (found := self._fused.run(step, done, calls, inside)) is not None:
                done = found
                continue
            call, done = step.calls[done], done + 1
            into = None
            if call.outputs and (chunk := chunks.get(call.outputs[0])) is not None:
                into = place(self._target(call.outputs[0], values), chunk)
            made = calls.run(call, [inside[name] for name in call.inputs], into)
            if made is not None:
                inside[call.outputs[0]] = made
        for name, chunk in chunks.items():
            if chunk is None:
                values[name] = inside[name].reshape(self.program.values[name].shape)
                continue
            target = self._target(name, values)
            there = place(target, chunk)
            if there is None or there.data_ptr() != inside[name].data_ptr():
                put(target, chunk, inside[name])
        values.has_read(step)
        sleep_until(begun + step.seconds, time.perf_counter)
        self.laps.append(Lap(*step.key, step.lane, begun, time.perf_counter()))

    def _target(self, name: str, values: _Values) -> Tensor:
        """The tensor into which chunks are written; one lane writes all of them."""
        if name not in values:
            value = self.program.values[name]
            values[name] = torch.empty(value.shape, dtype=self.dtypes[value.itemsize], device=self.device)
        return values[name]


_Function: TypeAlias = Callable[..., tuple[Tensor, ...]]


class Fused:
    """Runs the fused computation of steps. ``compiled``: whether to use ``torch.compile`` (a string: its backend).

    Stages that cannot be compiled run uncompiled, with a sentence for each in ``notes``.
    """

    def __init__(self, compiled: bool | str, notes: list[str]) -> None:
        self._compiled, self._notes = compiled, notes
        self._functions: dict[tuple[str, int, int], tuple[_Function, _Function]] = {}  # compiled, and plain

    def run(self, step: LaneStep, first: int, calls: Calls, inside: dict[str, Tensor]) -> int | None:
        """Run ``step`` from call ``first`` up to the next one that communicates, and return that one's number.

        Returns ``None``, without running anything, if the step is not fused or begins with such a call.
        """
        last = first
        while last < len(step.calls) and computes_alone(step.calls[last]):
            last += 1
        own = step.calls[first:last]
        if len(step.calls) == 1 or not own:
            return None
        made = [name for call in own for name in call.outputs]
        read = [name for name in dict.fromkeys(name for call in own for name in call.inputs) if name not in made]
        wanted = {part.name for part in step.writes} | {name for call in step.calls[last:] for name in call.inputs}
        given = [name for name in made if name in wanted]
        key = step.key[0], first, step.key[1] if any(call.kind == "dropout" for call in own) else 0
        if key not in self._functions:
            plain = _function(own, calls, read, given)
            self._functions[key] = self._made(step.key[0], plain), plain
        function, plain = self._functions[key]
        inputs = [inside[name] for name in read]
        try:
            results = function(*inputs)
        except Exception as error:
            if function is plain:
                raise
            self._note(step.key[0], error)
            self._functions[key] = plain, plain
            results = plain(*inputs)
        inside.update(zip(given, results, strict=True))
        return last

    def _made(self, stage: str, plain: _Function) -> _Function:
        if not self._compiled:
            return plain
        options: dict[str, Any] = {"backend": self._compiled} if isinstance(self._compiled, str) else {}
        try:
            function: _Function = torch.compile(plain, dynamic=False, **options)
        except Exception as error:
            self._note(stage, error)
            return plain
        return function

    def _note(self, stage: str, error: Exception) -> None:
        first = (str(error) or type(error).__name__).strip().splitlines()[0]
        note = f"the fused stage {stage!r} runs without torch.compile, which said: {first:.200}"
        if note not in self._notes:
            self._notes.append(note)


def _function(own: Sequence[StageCall], calls: Calls, read: Sequence[str], given: Sequence[str]) -> _Function:
    """All of ``own`` as one function from the tensors ``read`` to the tensors ``given``."""
    def fused(*inputs: Tensor) -> tuple[Tensor, ...]:
        inside = dict(zip(read, inputs, strict=True))
        for call in own:
            found = calls.run(call, [inside[name] for name in call.inputs])
            assert found is not None
            inside[call.outputs[0]] = found
        return tuple(inside[name] for name in given)
    return fused
