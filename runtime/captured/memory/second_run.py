"""A piece of a forward that runs again in the backward, where that first needs a tensor that the piece would have
saved.

Tensors in any structure, and their addresses, for the passes of a stage.

Random numbers and writes of a second forward: the random numbers of the first, and no write to buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from weft.runtime.captured.looks import attribute_of
from weft.runtime.captured.memory.held import TWICE, AbsentView, Held, Still, fetch
from weft.runtime.captured.memory.shares import Segment
from weft.runtime.train.moment import Seeded


class FirstPass(Protocol):
    """The forward that a piece first runs in. ``owners``: by address, the owner of each known memory."""

    stage: nn.Module

    @property
    def owners(self) -> Mapping[int, object]:
        ...

    def hold(self, tensor: Tensor) -> Held:
        """The stand-in for a tensor that the piece does not make."""

    def random(self, device: torch.device, share: int) -> RandomState:
        """The current random state."""


class SecondRun:
    """One piece of one forward that will be run again."""

    def __init__(self, passage: FirstPass, piece: Segment, xs: Sequence[Any], share: int = 0) -> None:
        self.passage: FirstPass | None = passage
        self.piece, self.stage = piece, passage.stage
        self.wanted: set[int] = set()  # the numbers of saved tensors that are made inside
        self.uses: Counter[int] = Counter()  # by number of a result, how often it is fetched
        self.saved: dict[int, Tensor] = {}
        self.results: dict[int, Tensor] = {}
        self.count = 0
        leaves, self.spec = tree_flatten(tuple(xs))
        self.differentiated = [isinstance(x, Tensor) and x.requires_grad for x in leaves]
        self.inputs: list[Any] | None = [passage.hold(x) if isinstance(x, Tensor) else x for x in leaves]
        self.device = next((x.device for x in leaves if isinstance(x, Tensor)), torch.device("cpu"))
        self.random = passage.random(self.device, share) if piece.random else None
        kind = self.device.type
        self.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind),
                                       cache_enabled=False)

    def put(self, tensor: Tensor) -> Held:
        """The stand-in for a tensor that the piece saves: its place in the sequence, if it was made inside."""
        number, self.count = self.count, self.count + 1
        assert self.passage is not None
        place = address_of(tensor)
        if not place or place in self.passage.owners or is_weight(tensor):
            return self.passage.hold(tensor)
        self.wanted.add(number)
        return Inner(self, number)

    def begun(self, ys: Sequence[Any]) -> None:
        """The first forward is over."""
        self.passage = None  # its memory is no longer tracked
        if not self.wanted and not self.piece.gives:
            self.inputs = None

    def fetch_saved(self, number: int) -> Tensor:
        """The tensor saved at one place."""
        if number not in self.saved:
            self._again()
        return self.saved.pop(number)

    def fetch_result(self, number: int) -> torch.UntypedStorage:
        """The memory of one result, for one of its uses."""
        if number not in self.results:
            self._again()
        memory = self.results[number].untyped_storage()
        self.uses[number] -= 1
        if not self.uses[number]:
            del self.results[number]
        return memory

    def forget_result(self, number: int) -> None:
        """Count one use of a result that will not be fetched any more."""
        self.uses[number] -= 1
        if not self.uses[number]:
            self.results.pop(number, None)

    def _again(self) -> None:
        if self.inputs is None:
            raise RuntimeError(TWICE)
        held, self.inputs = self.inputs, None
        leaves = [fetch(x).detach().requires_grad_(owed) if isinstance(x, Tensor | AbsentView | Inner | Still) else x
                  for x, owed in zip(held, self.differentiated, strict=True)]
        del held
        waiting, results = set(self.wanted), {number for number, uses in self.uses.items() if uses > 0}
        number = -1

        def take(tensor: Tensor) -> None:
            nonlocal number
            number += 1
            if number in waiting:
                waiting.remove(number)
                self.saved[number] = tensor.detach()
            if not waiting and not results:
                raise _Enough

        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self.autocast)
            stack.enter_context(unwritten(self.stage, self.piece.buffers))
            if self.random is not None:
                stack.enter_context(self.random.again())
            try:
                with saved_tensors_hooks(take, _never):
                    ys = self.piece.run(self.stage, *tree_unflatten(leaves, self.spec))
                for place in results:
                    self.results[place] = next(tensors_in(ys[place])).detach()
            except _Enough:
                pass


class Result:
    """One result of a recomputed piece, whose memory others save."""

    def __init__(self, run: SecondRun, number: int) -> None:
        self.run, self.number = run, number

    @property
    def uses(self) -> int:
        """The number of fetches to come."""
        return self.run.uses[self.number]

    @uses.setter
    def uses(self, value: int) -> None:
        self.run.uses[self.number] = value

    def fetch(self) -> torch.UntypedStorage:
        """Its memory, for one of its uses."""
        return self.run.fetch_result(self.number)

    def forget(self) -> None:
        """Count one use as over."""
        self.run.forget_result(self.number)


class Inner:
    """The tensor that a recomputed piece saved at one place."""

    __slots__ = ("number", "run")

    def __init__(self, run: SecondRun, number: int) -> None:
        self.run, self.number = run, number

    def fetch(self) -> Tensor:
        """The tensor."""
        return self.run.fetch_saved(self.number)


class _Enough(Exception):
    """A second forward has made all that it is for."""


def _never(held: object) -> Tensor:
    raise AssertionError("a second forward has no backward")


def address_of(tensor: Tensor) -> int:
    """The start of its memory; 0 where it has none."""
    return tensor.untyped_storage().data_ptr()


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors of a structure."""
    if isinstance(values, Tensor):
        yield values
        return
    for leaf in tree_flatten(list(values) if not isinstance(values, list | tuple | dict | int | float | None)
                             else values)[0]:
        if isinstance(leaf, Tensor):
            yield leaf


def is_weight(tensor: Tensor) -> bool:
    """Whether it is a parameter or a view of one."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


#: The distance between the seeds of shares.
FAR = 1_000_003


class RandomState:
    """The random state at one point of a forward: torch's generators, and the moment of operators with their own
    seeds."""

    def __init__(self, seeded: Sequence[Seeded], device: torch.device, share: int) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.here, self.there = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self.devices]
        self.moments = [(moment, replace(moment, seed=moment.seed + share * FAR)) for moment in {
            id(part.moment): part.moment for part in seeded}.values()]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Code inside draws the same numbers as then."""
        now = [replace(moment) for moment, _ in self.moments]
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.here)
            for device, state in zip(self.devices, self.there, strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                for moment, then in self.moments:
                    vars(moment).update(vars(then))
                yield
            finally:
                for (moment, _), own in zip(self.moments, now, strict=True):
                    vars(moment).update(vars(own))


@contextmanager
def unwritten(stage: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Restores these buffers afterwards."""
    before = [(buffer, buffer.clone()) for name in names for buffer in [attribute_of(stage, name)]]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # for torch, nothing has been written: tensors saved by others stay valid
